# Installs the packages named as arguments without starting their services, now or at the next boot. Runs as root.
set -eu
export DEBIAN_FRONTEND=noninteractive

# One at a time: two checkouts may be set up at once.
exec 9>/run/lock/lockkit-setup
flock 9

# Debian asks this program before it starts a service (invoke-rc.d(8), deb-systemd-invoke(1p)): 101 means no. What
# stood in its place comes back, also after a run that was killed half-way.
policy=/usr/sbin/policy-rc.d
before=$policy.before-lockkit
restore() {
    rm -f "$policy"
    if [ -e "$before" ] || [ -L "$before" ]; then mv "$before" "$policy"; fi
}
trap restore EXIT
trap 'exit 130' HUP INT TERM
if [ ! -e "$before" ] && [ ! -L "$before" ] && { [ -e "$policy" ] || [ -L "$policy" ]; }; then
    mv "$policy" "$before"
fi
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

lock_wait='DPkg::Lock::Timeout=300'
apt-get -o "$lock_wait" update -q
apt-get -o "$lock_wait" install -q -y --no-install-recommends "$@"

# The tests start servers of their own; a machine that just wanted to run them shall not boot with more services.
if command -v systemctl >/dev/null; then
    for package in "$@"; do
        dpkg -L "$package" | sed -n 's|^\(/usr\)\{0,1\}/lib/systemd/system/\([^/@]*\.service\)$|\2|p' |
            xargs -r systemctl disable
    done
fi
