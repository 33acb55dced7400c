# Installs the packages named as arguments. Their services start neither now nor at the next boot. Runs as root.
set -eu
export DEBIAN_FRONTEND=noninteractive

# One at a time: two checkouts may be set up at the same time.
exec 9>/run/lock/lockkit-setup
flock 9

# Debian runs this program before it starts a service (invoke-rc.d(8), deb-systemd-invoke(1p)); 101 means no. An existing
# one is restored at the end; if this run is killed, by the next run.
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

# The tests start servers of their own; running them should not add a service to the machine's boot.
if command -v systemctl >/dev/null; then
    for package in "$@"; do
        # The service of PostgreSQL belongs to a package on which this one depends.
        if [ "$package" = postgresql ]; then package=postgresql-common; fi
        dpkg -L "$package" | sed -n 's|^\(/usr\)\{0,1\}/lib/systemd/system/\([^/@]*\.service\)$|\2|p' |
            xargs -r systemctl disable
    done
fi
