# Goal: docs/settings.md says of every setting of the extension who sets it; and what the node decides for its server, no file
#       of the region, no reload, no role, no database and no session decides otherwise.
# Method: the settings are the server's own list.  Each that the node decides gets another value in each file, the node's file
#         is not included any more, and the server is started, and reloaded.  The seed is shown nowhere: a row's key tells it.
data=$work/nodes/here/postgres
page=../../docs/settings.md
# The rows of the page's two tables: who sets a setting, as PostgreSQL calls it, and its name.
said=$(sed -nE -e 's/^\| `(onetrip\.[a-z_]+)` .* \| anybody \|$/user \1/p' -e 's/^\| `(onetrip\.[a-z_]+)` .* \| superuser \|$/superuser \1/p' \
    -e 's/^\| `(onetrip\.[a-z_]+)` .* \| operator \|$/sighup \1/p' -e '/^\| setting \| default \| range \| \|$/,/^$/s/^\| `(onetrip\.[a-z_]+)` .*/postmaster \1/p' \
    "$page" | sort)
# PostgreSQL shows the seed to nobody, not even that there is one.
known=$( (query "SELECT context || ' ' || name FROM pg_settings WHERE name LIKE 'onetrip.%'"; echo "postmaster onetrip.key_seed") | sort)
[ "$said" = "$known" ] || wrong="${wrong}of who sets what, < the page and > the server say:
$(diff <(echo "$said") <(echo "$known") || true)
"

of_node=$(sed -n 's/^postmaster //p' <<<"$known")
query "CREATE TABLE seeds (t text PRIMARY KEY)"
shown() {
    query "SELECT name || ' = ' || setting FROM pg_settings
            WHERE name IN ('port', 'listen_addresses', 'data_directory') OR name LIKE 'onetrip.%' AND context = 'postmaster' ORDER BY 1"
    query "BEGIN; INSERT INTO seeds VALUES ('a'); SELECT md5(string_agg(hash::text, ' ' ORDER BY hash)) FROM onetrip.pending_keys(); ROLLBACK"
}
before=$(shown)

others=$(query "SELECT name || ' = ''' || CASE WHEN vartype = 'bool' THEN CASE setting WHEN 'on' THEN 'off' ELSE 'on' END
                                               WHEN vartype = 'string' THEN 'elsewhere'
                                               WHEN setting = max_val THEN min_val ELSE (setting::int + 1)::text END || ''''
                  FROM pg_settings WHERE name LIKE 'onetrip.%' AND context = 'postmaster'"
    printf "onetrip.key_seed = '1'\nport = 1\nlisten_addresses = '192.0.2.1'\ndata_directory = '/nowhere'\nunix_socket_directories = '%s'\n" "$data/more")
[ "$(wc -l <<<"$others")" -eq $(($(wc -w <<<"$of_node") + 4)) ] || wrong="${wrong}not every setting gets another value: $others
"
for file in postgresql.conf postgresql.auto.conf; do
    cp -p "$data/$file" "$work/$file.before"
done
sed -i "/^include = 'onetrip.conf'/d" "$data/postgresql.conf"
echo "include_dir = 'more'" >>"$data/postgresql.conf"
mkdir -m 777 "$data/more"
for file in postgresql.conf postgresql.auto.conf more/own.conf; do
    echo "$others" >>"$data/$file"
done
chmod 644 "$data/more/own.conf"
# The next start is of a server in its place.
stop_node
start_node
after=$(shown)
[ "$after" = "$before" ] || wrong="${wrong}after a start with other files it was, and is:
$(diff <(echo "$before") <(echo "$after") || true)
"
[ -S "$data/more/.s.PGSQL.$port" ] || wrong="${wrong}a socket in a folder of the operator's is missing
"
# The operator is told of each line.
for name in $of_node port listen_addresses data_directory; do
    for file in postgresql.conf postgresql.auto.conf more/own.conf; do
        grep -q "$name in $data/$file, line [0-9]*, has no effect" "$work/node.log" || wrong="${wrong}not told of $name in $file
"
    done
done

echo "work_mem = '5MB'" >>"$data/postgresql.conf"
query "SELECT pg_reload_conf()" >/dev/null
for _ in $(seq 600); do
    [ "$(query "SHOW work_mem")" = 5MB ] && break
    sleep 0.05
done
after=$(shown)
[ "$(query "SHOW work_mem") $after" = "5MB $before" ] || wrong="${wrong}after a reload it was, and is:
$(diff <(echo "$before") <(echo "$after") || true)
"

tries=0
refused=$(for name in $of_node; do
    for where in "SET" "ALTER ROLE postgres SET" "ALTER DATABASE onetrip SET" "ALTER SYSTEM SET"; do
        echo "$where $name = '1';"
    done
done | "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q 2>&1 | grep -c "^ERROR:  .*cannot be changed" || true)
tries=$(($(wc -w <<<"$of_node") * 4))
[ "$refused" -eq $tries ] || wrong="${wrong}$refused of $tries statements that set what the node decides were refused
"
for name in $of_node; do
    PGOPTIONS="-c $name=1" query "SELECT 1" >/dev/null 2>&1 && wrong="${wrong}a session began with $name of its own
"
done

for file in postgresql.conf postgresql.auto.conf; do
    cp -p "$work/$file.before" "$data/$file"
done
rm -r "$data/more"
query "DROP TABLE seeds"
