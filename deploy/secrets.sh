#!/bin/sh
# Writes what docker-compose.yml needs before the first start and must not be the same everywhere: random passwords to
# .env, and a certificate to certs/carillon.pem that clients can only trust by name. What is there already stays.
#
#   deploy/secrets.sh [NAME]     NAME: the host name that app servers call; default localhost
set -eu
cd "$(dirname "$0")/.."
umask 077
name=${1:-localhost}
touch .env
chmod 600 .env
for variable in CLICKHOUSE_PASSWORD CLICKHOUSE_DASHBOARDS_PASSWORD GRAFANA_PASSWORD; do
    if ! grep -q "^$variable=..*" .env; then
        sed -i "/^$variable=/d" .env
        [ -z "$(tail -c 1 .env)" ] || echo >> .env
        echo "$variable=$(openssl rand -hex 24)" >> .env
        echo "wrote $variable to .env"
    fi
done
if [ ! -e certs/carillon.pem ]; then
    mkdir -p certs
    chmod 755 certs
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=$name" \
        -addext "subjectAltName=DNS:$name" -keyout certs/key.new -out certs/chain.new 2>/dev/null
    cat certs/chain.new certs/key.new > certs/carillon.pem
    rm certs/chain.new certs/key.new
    # HAProxy's user in its container is 99
    if ! chown 99 certs/carillon.pem 2>/dev/null; then
        chmod 644 certs/carillon.pem
        echo "certs/carillon.pem holds a key and every user of this host can read it: as root, chown 99 and chmod 600"
    fi
    echo "wrote certs/carillon.pem for $name, which no client trusts by itself: replace it with one of your authority"
fi
