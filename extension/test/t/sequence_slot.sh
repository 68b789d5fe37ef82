# Goal: a data folder that is started with another sequence slot gives that slot's values from then on, but none that may
#       have been used before: values of other slots that have arrived in this folder count.
# Method: change the slot in node.toml between two starts, as if the folder came from another node.
# Slot 0 gives 1, 9, 17, ...; slot 3 gives 4, 12, 20, ... .

expect() {
    local got
    got=$(query "$2") || got="an error"
    [ "$got" = "$3" ] || wrong="$wrong$1: expected $3, got $got
"
}

conf=$work/nodes/here/postgres/postgresql.conf
query "CREATE SCHEMA slot;
       CREATE SEQUENCE slot.fresh; CREATE SEQUENCE slot.used; CREATE SEQUENCE slot.behind; CREATE SEQUENCE slot.down INCREMENT -2;
       CREATE SEQUENCE slot.short MAXVALUE 20; CREATE SEQUENCE slot.cycling MINVALUE 1 MAXVALUE 50 CYCLE;
       CREATE UNLOGGED SEQUENCE slot.unlogged; CREATE SEQUENCE slot.fives INCREMENT 5 START 100;
       CREATE TABLE slot.t (id serial PRIMARY KEY, v text);
       INSERT INTO slot.t (v) VALUES ('a'), ('b')" || wrong="the schema was not made
"
expect "slot 0" "SELECT nextval('slot.used'), nextval('slot.used'), nextval('slot.down'), nextval('slot.fives')" "1|9|-1|100"
# Slot 6 has used 15: this folder's own last value before it is 9.
query "SELECT onetrip.setval('slot.behind', 15), onetrip.setval('slot.short', 19)" >/dev/null
expect "behind" "SELECT last_value, is_called FROM slot.behind" "9|t"

# More than can be locked at the same time, which with so few max_locks_per_transaction was 5115 on PostgreSQL 15.
many() {
    query "DO \$\$ BEGIN FOR i IN 1..6000 LOOP EXECUTE format('$1 SEQUENCE slot.many_%s', i);
           IF i % 500 = 0 THEN COMMIT; END IF; END LOOP; END \$\$"
}
many CREATE
those="SELECT count(*) FROM pg_class WHERE relnamespace = 'slot'::regnamespace AND relname LIKE 'many\_%'"
expect "many" "$those" "6000"

stop_node
# A node of a lab does not insist on the slot that the table of members has for it.
sed -i 's/^sequence_slot = 0$/sequence_slot = 3\nlab = true/' "$work/nodes/here/node.toml"
echo "max_locks_per_transaction = 10" >>"$conf"
start_node
expect "the definition of a used one" \
    "SELECT start_value, increment, start_here, increment_here FROM onetrip.sequences WHERE schema_name = 'slot' AND sequence_name = 'used'" "1|1|4|8"
expect "no sequence is left out" \
    "SELECT count(*) FROM onetrip.sequences WHERE increment_here > 0 AND (start_here - start_value) % increment_here <> increment * 3" "0"
# PostgreSQL's WAL records are 32 values ahead of a sequence; after a clean shutdown they are not, so these are exact.
expect "fresh" "SELECT nextval('slot.fresh'), nextval('slot.fresh')" "4|12"
expect "used" "SELECT nextval('slot.used')" "20"
expect "behind a value of another slot" "SELECT nextval('slot.behind')" "20"
expect "down" "SELECT nextval('slot.down'), nextval('slot.down')" "-23|-39"
expect "by fives" "SELECT nextval('slot.fives')" "155"
expect "unlogged" "SELECT nextval('slot.unlogged')" "4"
expect "cycling" "SELECT max(v), min(v) FROM (SELECT nextval('slot.cycling') AS v FROM generate_series(1, 10) OFFSET 0) AS got" "44|4"
expect "a serial column" "INSERT INTO slot.t (v) VALUES ('c') RETURNING id" "20"
if query "SELECT nextval('slot.short')" 2>/dev/null; then
    wrong="${wrong}a sequence without a value left for this slot gave one
"
fi

# The next start has nothing to change, and the sequences go on.
stop_node
start_node
expect "once only" "SELECT nextval('slot.used')" "28"
said=$(grep -ac "now give the values of slot 3 of 8" "$work/nodes/here/postgres.log" || true)
[ "$said" = 1 ] || wrong="${wrong}the server's log says $said times, not once, that sequences give the values of slot 3
"
many DROP
expect "many are dropped" "$those" "0"
query "SET client_min_messages = warning; DROP SCHEMA slot CASCADE"
