#!/bin/sh
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# Hook of mmdebstrap, $1 is the root: takes out what no image needs, what must not be shared, what differs from run to run.
set -eu
root=$1
python=/usr/lib/python3.11
rm -rf "$root"/usr/share/perl "$root"/usr/lib/*-linux-gnu*/perl "$root"/usr/lib/*-linux-gnu*/libperl.so*
for part in ensurepip idlelib lib2to3 pydoc_data test turtledemo; do
	rm -rf "$root$python/$part"
done
rm -rf "$root"/etc/ssh/ssh_host_* "$root"/etc/machine-id "$root"/var/cache/* "$root"/var/log/* "$root"/var/lib/apt/*
# Packages' byte code names the sources' times, which an image does not keep.
find "$root$python" "$root/usr/lib/python3" -name __pycache__ -prune -exec rm -rf {} +
chroot "$root" python3 -m compileall -qq --invalidation-mode unchecked-hash "$python" /usr/lib/python3
