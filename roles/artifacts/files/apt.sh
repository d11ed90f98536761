# shellcheck shell=sh
# Downloads packages with all they depend on, as if nothing were installed, and packs a flat apt repository of them:
#   sh -s FOLDER PACKAGE... <apt.sh
# Leaves FOLDER.tar and prints the checksum of the repository's index. Of the host it changes apt's lists alone.
set -eu
folder=$1
shift
mkdir -p "$folder/partial"
: >"$folder/.status"
apt-get -qq update
apt-get -qq --yes --no-install-recommends --download-only \
  -o Dir::State::status="$folder/.status" -o Dir::Cache::archives="$folder" -o APT::Sandbox::User=root \
  install "$@" >/dev/null
cd "$folder"
for package in *.deb; do
  dpkg-deb --field "$package"
  printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' \
    "$package" "$(stat --format %s "$package")" "$(sha256sum "$package" | cut -d ' ' -f 1)"
done >Packages
tar --create --file "$folder.tar" ./*.deb Packages
sha256sum Packages | cut -d ' ' -f 1
