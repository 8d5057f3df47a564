#!/bin/sh
# Writes what docker-compose.yml needs before the first start and must not be the same everywhere: random passwords and
# an id of the Kafka cluster to .env, and a certificate to certs/carillon.pem that clients can only trust by name. What
# is there already stays.
#
#   deploy/secrets.sh [NAME]     NAME: the host name or IP address that app servers call; default localhost
set -eu
cd "$(dirname "$0")/.."
umask 077
name=${1:-localhost}
if ! command -v openssl > /dev/null; then
    echo "deploy/secrets.sh needs openssl, which is not installed; nothing was written" >&2
    exit 1
fi

is_set() {
    grep -q "^$1=..*" .env
}

write_variable() {
    sed -i "/^$1=/d" .env
    [ -z "$(tail -c 1 .env)" ] || echo >> .env
    echo "$1=$2" >> .env
    echo "wrote $1 to .env"
}

touch .env
chmod 600 .env
for variable in CLICKHOUSE_PASSWORD CLICKHOUSE_DASHBOARDS_PASSWORD GRAFANA_PASSWORD; do
    if ! is_set "$variable"; then
        value=$(openssl rand -hex 24)
        write_variable "$variable" "$value"
    fi
done
if ! is_set KAFKA_CLUSTER_ID; then
    value=$(openssl rand -base64 16)
    # Base64 for URLs without padding. Kafka's tools would take a value that begins with a minus sign for an option.
    write_variable KAFKA_CLUSTER_ID "$(echo "$value" | tr -d = | tr +/ -_ | sed 's/^-/A/')"
fi
if [ ! -e certs/carillon.pem ]; then
    if echo "$name" | grep -qE '^[0-9]+(\.[0-9]+){3}$|:'; then
        subject="IP:$name"
    else
        subject="DNS:$name"
    fi
    mkdir -p certs
    chmod 755 certs
    trap 'rm -f certs/chain.new certs/key.new certs/carillon.new' EXIT
    trap 'exit 1' HUP INT TERM
    # Clients compare the alternative name alone. The common name may have 64 characters at most, so NAME is not in it.
    if ! said=$(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=carillon \
        -addext "subjectAltName=$subject" -keyout certs/key.new -out certs/chain.new 2>&1); then
        echo "no certificate could be made for $name:" >&2
        echo "$said" >&2
        exit 1
    fi
    cat certs/chain.new certs/key.new > certs/carillon.new
    mv certs/carillon.new certs/carillon.pem
    # HAProxy's user in its container is 99
    if ! chown 99 certs/carillon.pem 2>/dev/null; then
        chmod 644 certs/carillon.pem
        echo "certs/carillon.pem holds a key and every user of this host can read it: as root, chown 99 and chmod 600"
    fi
    echo "wrote certs/carillon.pem for $name, which no client trusts by itself: replace it with one of your authority"
fi
