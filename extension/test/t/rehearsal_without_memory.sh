# Goal: a session in which a rehearsal fails, and which has no memory for that error, goes on as any other session.
# Method: a function fails with a long message, under limits of which some let it make the message and not copy it.
if [ -n "${SANITIZERS:-}" ]; then
    # shellcheck disable=SC2034
    unchecked="the sanitizers have an allocator of their own, which cannot be limited so"
else
    query "CREATE TABLE short (id int PRIMARY KEY);
           CREATE TABLE short_here (v int) USING heap;
           INSERT INTO short VALUES (0);
           CREATE FUNCTION fails_here(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
           BEGIN
               IF EXISTS (SELECT FROM public.short_here) THEN RAISE '%', repeat('long', 1000000); END IF;
               RETURN v;
           END \$\$"
    cat >"$work/short.sql" <<'SQL'
BEGIN;
CREATE INDEX ON public.short (public.fails_here(id));
SELECT unit.write_set() AS operations \gset
ROLLBACK;
INSERT INTO public.short_here VALUES (1);
SELECT format('SELECT unit.limit_memory(%s)', more), format('SELECT onetrip.rehearse(0, %L)', :'operations'), 'SELECT unit.limit_memory(NULL)',
    'DO $$ BEGIN INSERT INTO public.short VALUES (1); RAISE ''captured: %'', onetrip.pending_bytes() > 0; END $$'
FROM generate_series(4000000, 40000000, 1000000) AS more \gexec
SQL
    "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -f "$work/short.sql" >"$work/short.log" 2>&1
    captured=$(grep -c "ERROR:  captured: t" "$work/short.log") || true
    grep -q "ERROR:  out of memory" "$work/short.log" && grep -q "ERROR:  longlong" "$work/short.log" ||
        wrong="no limit was too low, or none high enough
"
    [ "$captured" -eq 37 ] || wrong="${wrong}after $captured of 37 rehearsals the session was as any other: $(cut -c 1-160 "$work/short.log" | tail -n 5)
"
    query "SET client_min_messages = warning; DROP TABLE short, short_here; DROP FUNCTION fails_here"
fi
