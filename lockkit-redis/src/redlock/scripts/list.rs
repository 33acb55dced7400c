// Which files of this folder make a script, in their order. Tests include this list, too.
scripts! {
    ASK: "fields", "has", "lock", "ask_free", "number", "node", "counter", "ask";
    WRITE_BACK: "fields", "number", "node", "has", "lock", "counter", "write_back";
    RELEASE: "has", "lock", "hint", "release";
    RELEASE_RESTORED: "fields", "number", "node", "has", "lock", "counter", "refuse_restores", "hint", "release";
    BREAK: "fields", "number", "node", "has", "lock", "counter", "hint", "break";
    RESTORE: "fields", "number", "node", "has", "lock", "counter", "proposal", "restore";
    PROCLAIM: "fields", "number", "node", "has", "lock", "counter", "proposal", "proclaim";
    WRITE_RECORD: "number", "node", "state", "has", "lock", "write_record";
    READ_RECORD: "number", "node", "read_record";
    RENEW: "node", "has", "renew";
    INSPECT: "number", "node", "inspect";
    LOOK: "number", "node", "state", "look";
    NOTE_EMPTY: "number", "node", "state", "note_empty";
    MARK: "number", "node", "state", "mark";
}
