# shellcheck shell=bash
# What a machine must have to build and run this project; sourced by scripts/test and quickstart.
#
# Looks first, installs only what is missing, and only from the distribution's own packages (Debian
# and their kin, as root or through sudo). Whatever can't be installed is named with the command that
# would do it. Nothing else of the machine is changed.

: "${checkout:?the script that sources this one sets it to the root of the checkout}"

missing_packages=()
missing_words=()

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

has() { command -v "$1" >/dev/null 2>&1; }

# Marks something as missing: what it is, then the Debian packages that bring it.
lacks() {
    missing_words+=("$1")
    shift
    missing_packages+=("$@")
}

# Cargo from PATH, else where rustup puts it.
find_cargo() {
    if ! has cargo && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    has cargo && cargo --version >/dev/null 2>&1
}

wanted_rust() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$checkout/Cargo.toml"; }

# Whether version $1 is at least version $2.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort --version-sort | head -n 1) == "$2" ]]; }

packaged_rustup() { has apt-cache && [[ -n $(apt-cache search --names-only '^rustup$') ]]; }

need_rust() {
    local wanted
    wanted=$(wanted_rust)
    if find_cargo; then
        local found
        found=$(cd "$checkout" && rustc --version | cut -d ' ' -f 2)
        at_least "$found" "$wanted" && return
        say "Rust $found is too old; $wanted or newer is needed. With rustup: rustup update stable"
        exit 2
    fi
    if has rustup; then
        rust_from_rustup=yes
    elif packaged_rustup; then
        lacks "a Rust toolchain" rustup
        rust_from_rustup=yes
    else
        say "Rust $wanted or newer is needed, and this distribution has no package that is new enough."
        say "Install it with rustup (https://rustup.rs), then run this again:"
        say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"
        exit 2
    fi
}

# Called after the packages are there: a packaged rustup brings no toolchain of its own.
finish_rust() {
    if [[ ${rust_from_rustup:-} == yes ]]; then
        say "installing a Rust toolchain for $(id -un) with rustup"
        rustup toolchain install stable --profile minimal --component rustfmt --component clippy
        rustup default stable
        find_cargo || {
            say "rustup is there, but it gave no working cargo"
            exit 2
        }
    fi
}

need_c_compiler() {
    has cc || lacks "a C compiler (for io_uring's and TLS's C parts)" gcc libc6-dev
    # glommio's build asks git for its submodule, which the published crate already holds.
    has git || lacks "git" git
}

# The folder with initdb and postgres, as the testbed looks for it: $PGBIN, PATH, the distribution's.
postgres_folder() {
    if [[ -n ${PGBIN:-} ]]; then
        [[ -x $PGBIN/initdb ]] && printf '%s\n' "$PGBIN"
        return
    fi
    if has initdb && has postgres; then
        dirname "$(command -v initdb)"
        return
    fi
    local newest
    newest=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort --version-sort | tail -n 1)
    [[ -x $newest ]] && dirname "$newest"
}

need_postgres() {
    postgres_folder >/dev/null && return
    if [[ -n ${PGBIN:-} ]]; then
        say "PGBIN is $PGBIN, and there is no initdb in it"
        exit 2
    fi
    lacks "PostgreSQL's server programs" postgresql
}

# Debian has it in /usr/sbin, which is not in every user's PATH.
need_haproxy() {
    has haproxy || PATH=$PATH:/usr/sbin:/usr/local/sbin
    has haproxy || lacks "HAProxy (stands before several gateways)" haproxy
}

need_python() {
    has "${PYTHON:-python3}" && "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null && return
    lacks "Python 3 with venv" python3 python3-venv
}

# Installs what the `need_…` calls found missing, or says what to install and ends.
install_missing() {
    if ((${#missing_packages[@]} == 0)); then
        finish_rust
        return
    fi
    say "missing: $(printf '%s; ' "${missing_words[@]}")"
    local install=(apt-get install --yes --no-install-recommends "${missing_packages[@]}")
    local become=()
    if ! has apt-get; then
        say "this is no Debian or Ubuntu: install them with your package manager (on Debian: ${missing_packages[*]})"
        exit 2
    fi
    if ((EUID != 0)); then
        # At a terminal sudo may ask for the password; elsewhere it must not wait for one.
        if ! has sudo || ! { [[ -t 0 ]] || sudo --non-interactive true 2>/dev/null; }; then
            say "run this as root, or let someone who may: ${install[*]}"
            exit 2
        fi
        become=(sudo)
    fi
    say "installing: ${missing_packages[*]}"
    "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update --quiet
    "${become[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"
    finish_rust
}

# What the kernel and the limits must allow; the testbed and the gateway say more when they start.
check_kernel() {
    local disabled=/proc/sys/kernel/io_uring_disabled
    if [[ -r $disabled && $(<"$disabled") == 2 ]]; then
        say "io_uring is switched off (kernel.io_uring_disabled = 2), and the gateway needs it:"
        say "    sysctl kernel.io_uring_disabled=0"
        exit 2
    fi
    # Soft limits as high as the hard ones go, or as high as they can be of use.
    local soft hard enough=1048576
    soft=$(ulimit -S -n) hard=$(ulimit -H -n)
    if [[ $soft != unlimited ]] && ((soft < enough)); then
        if [[ $hard == unlimited ]] || ((hard > enough)); then hard=$enough; fi
        ulimit -S -n "$hard" || say "the limit of open files stays at $soft"
    fi
    ulimit -S -l "$(ulimit -H -l)" || true
    local locked_kib
    locked_kib=$(ulimit -S -l)
    if [[ $locked_kib != unlimited ]] && ((locked_kib < 2048)); then
        say "only $locked_kib KiB of memory may be locked (ulimit -l); io_uring needs 2048 KiB or more."
        say "Raise memlock in /etc/security/limits.conf (in a container: --ulimit memlock=-1) and log in anew."
        exit 2
    fi
}
