-- Goal: C writes and reads the frames of docs/agent-protocol.md byte for byte as the Rust side does: both use testdata/agent/.
-- Method: compare what the extension writes; decode what it reads; cut each frame at every byte; feed garbage.
\set frames `cd "$ONETRIP_GOLDEN" && for f in *.hex; do echo "${f%.hex}=$(sed 's/#.*//' "$f" | tr -d ' \n')"; done`
CREATE TEMP TABLE golden AS
    SELECT split_part(line, '=', 1) AS name, decode(split_part(line, '=', 2), 'hex') AS bytes
    FROM regexp_split_to_table(:'frames', E'\n') line WHERE line <> '';
CREATE FUNCTION pg_temp.body(bytes bytea) RETURNS bytea LANGUAGE sql AS 'SELECT substr(bytes, 6)';
CREATE FUNCTION pg_temp.frame(body bytea) RETURNS bytea LANGUAGE sql AS
    $$SELECT decode(lpad(to_hex(length(body)), 2, '0') || '000000', 'hex') || body$$;

-- The length field of each golden frame is right (each is shorter than 256 bytes).
SELECT count(*), bool_and(bytes = pg_temp.frame(substr(bytes, 5))) AS lengths_right FROM golden;

-- Written by C: types below 0x80.
SELECT name, unit.write_frame(name) = bytes AS same FROM golden WHERE get_byte(bytes, 4) < 128 ORDER BY name COLLATE "C";

-- Read by C.
SELECT name, unit.read_frame(bytes) AS fields FROM golden WHERE get_byte(bytes, 4) >= 128 ORDER BY name COLLATE "C";

-- Cut anywhere on the wire: no frame yet, and never one if the node has gone.
SELECT name, unit.read_prefixes(bytes) = length(bytes) AS waits_for_all FROM golden ORDER BY name COLLATE "C";

-- Cut anywhere, with a length field to match: 08P01, except within the write set of an ENTRY, the text of a SEEN or the bytes of an ARRIVING, which are opaque, and before the times of a VERDICT.
CREATE FUNCTION pg_temp.cut(bytes bytea, OUT bodies int, OUT refused int, OUT taken int) LANGUAGE plpgsql AS $$
BEGIN
    bodies := length(bytes) - 5;
    refused := 0;
    taken := 0;
    FOR n IN 0..bodies - 1 LOOP
        BEGIN
            PERFORM unit.decode_body(get_byte(bytes, 4), substr(bytes, 6, n));
            taken := taken + 1;
        EXCEPTION WHEN protocol_violation THEN
            refused := refused + 1;
        END;
    END LOOP;
END $$;
SELECT name, (pg_temp.cut(bytes)).* FROM golden WHERE get_byte(bytes, 4) >= 128 ORDER BY name COLLATE "C";

-- Any one byte of a body changed: the frame is decoded or refused, and nothing worse happens.
CREATE FUNCTION pg_temp.changed(bytes bytea) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 0..length(bytes) - 6 LOOP
        FOR v IN 0..255 LOOP
            BEGIN
                PERFORM unit.decode_body(get_byte(bytes, 4), set_byte(substr(bytes, 6), n, v));
            EXCEPTION WHEN protocol_violation OR character_not_in_repertoire THEN NULL;
            END;
        END LOOP;
    END LOOP;
    RETURN true;
END $$;
SELECT name, pg_temp.changed(bytes) FROM golden WHERE name IN ('verdict_refused', 'entry', 'entry_leaves_out', 'welcome') ORDER BY name COLLATE "C";

-- A VERDICT with bytes after its end, or with an invalid outcome.
SELECT unit.decode_body(130, pg_temp.body(bytes) || '\x00') FROM golden WHERE name = 'verdict_commit';
SELECT unit.decode_body(130, set_byte(pg_temp.body(bytes), 20, 99)) FROM golden WHERE name = 'verdict_commit';
-- Names longer than the buffers are cut, not written past them.
SELECT length(unit.decode_body(130, substr(bytes, 6, 41) || '\xffff' || convert_to(repeat('r', 65535), 'UTF8') || '\xffff' || convert_to(repeat('m', 65535), 'UTF8')))
    FROM golden WHERE name = 'verdict_commit';
-- Impossible lengths.
SELECT unit.read_frame('\x00000000');
SELECT unit.read_frame('\xffffffff81');
SELECT unit.read_frame('\x0000004081');
SELECT unit.read_frame('');
-- Two frames in one packet, and a frame of a type that the node does not send.
SELECT unit.read_frame(bytes || bytes) FROM golden WHERE name = 'verdict_commit';
SELECT unit.read_frame('\x0100000002');
-- A connection takes two descriptors. Without them, connecting fails with a message but raises no error, since the session may be waiting for a verdict.
SELECT n AS left, unit.connect_with(n) FROM generate_series(0, 3) n;
-- Nothing follows a PROPOSE that is not completely sent: whoever made it has given it up.
SELECT sent, unit.send_behind(sent) FROM (VALUES (false), (true)) v (sent);
-- What a large frame needs is given back.
SELECT unit.keeps(20000000) < 2 AS given_back;
-- None of this has reached the node or this transaction.
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
DROP TABLE golden;
