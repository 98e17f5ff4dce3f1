#!/bin/sh
# Unpack the packages of packages.txt, and nothing that they only need to be installed or removed, as a root file system:
#   unpack.sh packages.txt /rootfs
# It has no shell, no package manager and no program that changes its user. Scanners find the packages in dpkg/status.d.
set -eu
list=$1 root=$2
folder=$(mktemp -d)
chmod 755 "$folder"
cd "$folder"
apt-get update
# shellcheck disable=SC2046 # a list of names
apt-get download $(cat "$list")
mkdir -p "$root/var/lib/dpkg/status.d"
for file in *.deb; do
    dpkg-deb --extract "$file" "$root"
    dpkg-deb --field "$file" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$file" Package)"
done
cd /
rm -r "$folder"

# Manuals, translations, programs of administrators, and what only a developer of Python needs. Licences stay.
rm -rf "$root"/usr/sbin "$root"/usr/share/man "$root"/usr/share/locale "$root"/usr/share/lintian "$root"/usr/share/bug \
    "$root"/usr/lib/python3.13/pydoc_data "$root"/usr/lib/python3.13/config-3.13-*
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/bin" -type f ! -name 'python3*' -delete
ln -s python3.13 "$root/usr/bin/python3"

# What the packages' scripts would make.
cp -a /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root/usr/lib/ssl" "$root/tmp" "$root/etc"
ln -sfn /etc/ssl/certs "$root/usr/lib/ssl/certs"
ln -sfn /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"
chmod 1777 "$root/tmp"
for name in bin lib sbin; do ln -sfn "usr/$name" "$root/$name"; done
mkdir -p "$root/usr/sbin"
if [ -d "$root/usr/lib64" ]; then ln -sfn usr/lib64 "$root/lib64"; fi
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# By number: Kubernetes' runAsNonRoot can't look up names. The chart runs Pods as the same.
printf 'root:x:0:0:root:/root:/usr/sbin/nologin\ncommitterd:x:65532:65532::/nonexistent:/usr/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\ncommitterd:x:65532:\n' >"$root/etc/group"
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$root/usr/lib/python3.13"
