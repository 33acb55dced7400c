//! Frames of HTTP/2 (RFC 9113), as far as the bodies of messages need them.

/// The first bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADER_BYTES: usize = 9;

/// The largest payload that every peer accepts.
const PAYLOAD_MAX: usize = 16 << 10;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// A frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    /// Header and payload.
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    pub(super) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// Returns the body of a DATA frame, and how many bytes around it count for flow control.
    pub(super) fn data(&self) -> (&[u8], usize) {
        let payload = &self.bytes[HEADER_BYTES..];
        if self.flags & PADDED == 0 {
            return (payload, 0);
        }
        let padding = usize::from(payload.first().copied().unwrap_or_default());
        let data = payload.get(1..payload.len().saturating_sub(padding)).unwrap_or_default();
        (data, payload.len() - data.len())
    }
}

/// Splits a stream of bytes into frames.
#[derive(Debug, Default)]
pub(super) struct Frames(Vec<u8>);

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Takes the client's first bytes, if they are complete.
    pub(super) fn take_preface(&mut self) -> Option<&'static [u8]> {
        self.0.starts_with(PREFACE).then(|| {
            self.0.drain(..PREFACE.len());
            PREFACE
        })
    }

    pub(super) fn next(&mut self) -> Option<Frame> {
        let header = self.0.get(..HEADER_BYTES)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let (kind, flags) = (header[3], header[4]);
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & (u32::MAX >> 1);
        if self.0.len() < HEADER_BYTES + length {
            return None;
        }
        Some(Frame { kind, flags, stream, bytes: self.0.drain(..HEADER_BYTES + length).collect() })
    }
}

/// Appends DATA frames with this body.
pub(super) fn write_data(to: &mut Vec<u8>, stream: u32, body: &[u8]) {
    for payload in body.chunks(PAYLOAD_MAX) {
        write_header(to, DATA, stream, payload.len());
        to.extend(payload);
    }
}

/// Appends the frames by which a receiver returns flow control credit for `bytes` of DATA.
pub(super) fn write_credit(to: &mut Vec<u8>, stream: u32, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // The windows of the stream and of the connection.
    for window in [stream, 0] {
        write_header(to, WINDOW_UPDATE, window, 4);
        to.extend((bytes as u32).to_be_bytes());
    }
}

fn write_header(to: &mut Vec<u8>, kind: u8, stream: u32, length: usize) {
    to.extend(&(length as u32).to_be_bytes()[1..]);
    to.extend([kind, 0]);
    to.extend(stream.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames_of(bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Frames::default();
        // Byte by byte: a network may split anywhere.
        let mut found = Vec::new();
        for byte in bytes {
            frames.push(&[*byte]);
            found.extend(frames.next());
        }
        assert!(frames.0.is_empty());
        found
    }

    #[test]
    fn written_data_is_read_back() {
        let body: Vec<u8> = (0..40_000_u32).map(|n| n as u8).collect();
        let mut bytes = Vec::new();
        write_data(&mut bytes, 7, &body);
        let frames = frames_of(&bytes);
        assert_eq!(frames.len(), 3);
        assert!(frames.iter().all(|frame| (frame.kind, frame.stream) == (DATA, 7) && !frame.ends_stream()));
        let read: Vec<u8> = frames.iter().flat_map(|frame| frame.data().0.to_vec()).collect();
        assert_eq!(read, body);
    }

    #[test]
    fn padding_is_counted_apart_from_the_body() {
        let padded = [&[0, 0, 6, DATA, PADDED, 0, 0, 0, 5][..], &[3, b'h', b'i', 0, 0, 0]].concat();
        assert_eq!(frames_of(&padded)[0].data(), (&b"hi"[..], 4));
    }

    #[test]
    fn credit_is_given_for_stream_and_connection() {
        let mut bytes = Vec::new();
        write_credit(&mut bytes, 5, 1_000);
        let frames = frames_of(&bytes);
        assert_eq!(
            frames.iter().map(|frame| (frame.kind, frame.stream)).collect::<Vec<_>>(),
            [(8, 5), (8, 0)]
        );
        assert!(frames.iter().all(|frame| frame.bytes[HEADER_BYTES..] == 1_000_u32.to_be_bytes()));
    }
}
