# shellcheck shell=sh
# Downloads packages with all they depend on, and packs a dnf repository of them:
#   sh -s FOLDER PACKAGE... <dnf.sh
# Leaves FOLDER.tar and prints the checksum of the repository's index. Needs dnf-plugins-core and createrepo_c.
set -eu
folder=$1
shift
mkdir -p "$folder"
command -v createrepo_c >/dev/null || {
  echo "createrepo_c is missing; install createrepo_c and dnf-plugins-core on this host" >&2
  exit 1
}
dnf --quiet --assumeyes download --resolve --alldeps --destdir "$folder" "$@" >/dev/null
createrepo_c --quiet --update "$folder"
cd "$folder"
tar --create --file "$folder.tar" ./*.rpm repodata
sha256sum repodata/repomd.xml | cut -d ' ' -f 1
