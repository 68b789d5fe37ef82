# shellcheck shell=bash
# Fetches packages from Debian without installing them, and their sources; for scripts that source it.  apt keeps separate
# package lists, so the machine's own lists stay as they are.

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

# fetch_source PACKAGE DIR: leaves in DIR the files of the source package that PACKAGE was built from.  The version should be
# the installed one; if this machine's archives of Debian do not offer that, it is the newest that they do.  Sets `wanted` and
# `fetched`, the installed version and that of the files, and `apt_options`, with which apt uses the same archives.
fetch_source() {
    local package=$1 apt_dir=$2 version
    apt_options=(-qq -o "Dir::Etc::SourceList=$apt_dir/sources.list" -o "Dir::Etc::SourceParts=$apt_dir/sources.list.d"
        -o "Dir::State::Lists=$apt_dir/lists" -o "Dir::State::Status=$apt_dir/status" -o "Dir::Cache=$apt_dir"
        -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::http::Timeout=20)
    rm -rf "$apt_dir"
    mkdir -p "$apt_dir/lists/partial" "$apt_dir/archives/partial" "$apt_dir/sources.list.d"
    [ ! -e /etc/apt/sources.list ] || sed 's/^deb \(.*\)/&\ndeb-src \1/' /etc/apt/sources.list >"$apt_dir/sources.list"
    [ ! -e /etc/apt/sources.list.d/debian.sources ] || sed 's/^Types: deb$/Types: deb deb-src/' \
        /etc/apt/sources.list.d/debian.sources >"$apt_dir/sources.list.d/debian.sources"
    : >"$apt_dir/status"
    apt-get "${apt_options[@]}" update
    wanted=$(dpkg-query -W -f '${source:Version}' "$package")
    fetched=
    for version in "$wanted" $(apt-cache "${apt_options[@]}" showsrc "$package" | sed -n 's/^Version: //p' | sort -rVu); do
        if (cd "$apt_dir" && apt-get "${apt_options[@]}" source --download-only "$package=$version" 2>>errors); then
            # shellcheck disable=SC2034
            fetched=$version
            return
        fi
    done
    cat "$apt_dir/errors" >&2
    echo "no source package of $package can be had" >&2
    return 1
}

# fetch_source_of PACKAGE RELEASE DIR: leaves in DIR the files of the newest source package of that name in Debian's release.
fetch_source_of() (
    if [ ! -e $keyring ]; then
        echo "$keyring is missing: install debian-archive-keyring" >&2
        exit 1
    fi
    rm -rf "$3" && mkdir -p "$3/lists/partial" "$3/archives/partial" && cd "$3" &&
        echo "deb-src [signed-by=$keyring] http://deb.debian.org/debian $2 main" >sources.list && : >status &&
        apt=(-qq -o "Dir::Etc::SourceList=$3/sources.list" -o Dir::Etc::SourceParts=/dev/null
            -o "Dir::State::Lists=$3/lists" -o "Dir::State::Status=$3/status" -o "Dir::Cache=$3" -o APT::Sandbox::User=
            -o APT::Update::Error-Mode=any -o Acquire::Languages=none -o Acquire::http::Timeout=20) &&
        apt-get "${apt[@]}" update && apt-get "${apt[@]}" source --download-only "$1" && rm -rf lists archives
)
