# Installs the packages named as arguments without starting their services, now or at the next boot. Runs as root.
set -eu
export DEBIAN_FRONTEND=noninteractive

# One at a time: two checkouts may be set up at once.
exec 9>/run/lock/lockkit-setup
flock 9

# Debian asks this program before it starts a service (invoke-rc.d(8), deb-systemd-invoke(1p)); 101 means no. What
# stood in its place comes back, at the latest with the next run when this one is killed.
policy=/usr/sbin/policy-rc.d
theirs=$policy.before-lockkit
mark='written by the set-up of lockkit'
there() { [ -e "$1" ] || [ -L "$1" ]; }
restore() {
    if grep -qs "$mark" "$policy"; then rm "$policy"; fi
    if there "$theirs"; then mv "$theirs" "$policy"; fi
}
restore
trap restore EXIT
trap 'exit 130' HUP INT TERM
if there "$policy"; then mv "$policy" "$theirs"; fi
printf '#!/bin/sh\n# %s\nexit 101\n' "$mark" >"$policy"
chmod 755 "$policy"

lock_wait='DPkg::Lock::Timeout=300'
apt-get -o "$lock_wait" update -q
apt-get -o "$lock_wait" install -q -y --no-install-recommends "$@"

# The tests start servers of their own; a machine that just runs them shall not boot with a service more.
if command -v systemctl >/dev/null; then
    for package in "$@"; do
        dpkg -L "$package" | sed -n 's|^\(/usr\)\{0,1\}/lib/systemd/system/\([^/@]*\.service\)$|\2|p' |
            xargs -r systemctl disable
    done
fi
