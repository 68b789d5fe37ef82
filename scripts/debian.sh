# shellcheck shell=bash
# Fetches packages from Debian without installing them; for scripts that source it.  apt keeps separate package lists, so the
# machine's own lists stay as they are.

keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# unpack_package PACKAGE RELEASE DIR: replaces DIR by what the package in Debian's release contains.  The steps are joined by
# &&, since bash ignores `set -e` in a function that is called in a condition.
unpack_package() (
    if [ ! -e $keyring ]; then
        echo "$keyring is missing: install debian-archive-keyring" >&2
        exit 1
    fi
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$3/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$3/lists" -o "Dir::State::Status=$3/status" -o "Dir::Cache=$3" -o APT::Sandbox::User=
        -o APT::Update::Error-Mode=any -o Acquire::Languages=none -o Acquire::http::Timeout=20)
    rm -rf "$3" && mkdir -p "$3/lists/partial" "$3/archives/partial" && cd "$3" &&
        echo "deb [signed-by=$keyring] http://deb.debian.org/debian $2 main" >sources.list && : >status &&
        "${apt[@]}" update && "${apt[@]}" download "$1" &&
        dpkg-deb -x "$1"_*.deb . &&
        rm -rf lists archives ./*.deb ./*.bin
)
