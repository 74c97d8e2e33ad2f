#!/bin/sh
# Makes an authority, and for each host a certificate that it signs: for etcd and for primusd, as
# server and as client.
#
#   make-certs.sh FOLDER HOST[,NAME|ADDRESS...]...
#   make-certs.sh tls head1,10.0.0.1 head2,10.0.0.2 head3,10.0.0.3
#
# FOLDER/ca.key   the authority: keep it off the hosts
# FOLDER/ca.pem   what everybody trusts
# FOLDER/HOST.pem the host's certificate with the authority's behind it, FOLDER/HOST.key its key
#
# An authority that is there signs again; a host that has a certificate is refused: move it away to
# renew it. DAYS says for how long certificates hold, 825 by default.
set -eu
umask 077

usage() {
    sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

fail() {
    echo "make-certs.sh: $1" >&2
    exit 1
}

[ $# -ge 2 ] || usage
command -v openssl >/dev/null || fail "openssl is not installed: apt-get install openssl"
folder=$1
shift
days=${DAYS:-825}
case $days in
'' | *[!0-9]*) fail "DAYS is $days; it is a number of days" ;;
esac

for host in "$@"; do
    name=${host%%,*}
    case $name in
    '' | ca | *[!A-Za-z0-9.-]*) fail "$name is no name of a host: letters, digits, dots and dashes" ;;
    esac
    case ,$host, in
    *,,* | *[!A-Za-z0-9.:,*-]*) fail "$host is no list of names and addresses, with commas between" ;;
    esac
    [ ! -e "$folder/$name.pem" ] || fail "$folder/$name.pem is there: move it away to renew it"
done

mkdir -p "$folder"
if [ ! -e "$folder/ca.key" ]; then
    [ ! -e "$folder/ca.pem" ] || fail "$folder/ca.pem has no ca.key beside it to sign with"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -sha256 \
        -subj "/CN=primus authority" -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null ||
        fail "openssl could not make the authority"
fi

for host in "$@"; do
    name=${host%%,*}
    names=
    rest=$host,
    while [ -n "$rest" ]; do
        one=${rest%%,*}
        rest=${rest#*,}
        case $one in
        *:* | *[!0-9.]*) case $one in *:*) kind=IP ;; *) kind=DNS ;; esac ;;
        *) kind=IP ;;
        esac
        names=${names:+$names,}$kind:$one
    done
    request=$folder/$name.csr
    extensions=$folder/$name.ext
    trap 'rm -f "$request" "$extensions" "$folder/$name.crt"' EXIT
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' \
        "$names" >"$extensions"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
        -keyout "$folder/$name.key" -out "$request" 2>/dev/null || fail "openssl could not make a key"
    openssl x509 -req -in "$request" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -sha256 \
        -set_serial "0x$(openssl rand -hex 16)" -days "$days" -extfile "$extensions" \
        -out "$folder/$name.crt" 2>/dev/null || fail "openssl could not sign for $host"
    cat "$folder/$name.crt" "$folder/ca.pem" >"$folder/$name.pem"
    rm -f "$request" "$extensions" "$folder/$name.crt"
    trap - EXIT
    chmod 644 "$folder/ca.pem" "$folder/$name.pem"
    echo "$folder/$name.pem: $names"
done
