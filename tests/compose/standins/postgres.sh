# Makes the database and its user at the first start, and serves.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --auth-local=trust \
        --encoding=UTF8 --locale=C.UTF-8
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB;" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql,/tmp
