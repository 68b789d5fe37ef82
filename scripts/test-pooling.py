"""What pgbouncer's two ways of pooling do to what belongs to a session: each line of the table in docs/clients.md.

    ONETRIP_SESSIONS=URL ONETRIP_TRANSACTIONS=URL ONETRIP_NEAR=URL ONETRIP_MIDDLE=URL test-pooling.py

The first two go through pgbouncer into region near, to sessions of one and the same role; the others to the regions, as a
superuser.  The pool gives out first what came back last.  So a client that is alone gets the same session of the server
again and again, and another one if somebody else holds that one in a transaction.  Run by scripts/test-clients.sh.
"""

import os
import signal
import sys
import threading
import time

import psycopg
from psycopg import errors

SESSIONS, TRANSACTIONS = "sessions", "transactions"
failed = 0


def connect(name, **options):
    url = os.environ["ONETRIP_" + name.upper()]
    return psycopg.connect(url, autocommit=True, prepare_threshold=None, connect_timeout=10, **options)


def value(connection, sql, *parameters):
    return connection.execute(sql, parameters or None).fetchone()[0]


def raises(error, connection, sql):
    try:
        connection.execute(sql)
    except error:
        return True
    except psycopg.Error as other:
        print(f"  {sql}: {other.sqlstate} {other}")
    return False


def test(*pools):
    """Runs a function that gives answers, all of which must be true, with two clients of each pool."""

    def run(function):
        global failed
        for pool in pools:
            clients = [connect(pool), connect(pool)]
            try:
                answers = function(*clients)
                problem = None if all(answers) else str(answers)
            except (psycopg.Error, AssertionError) as error:
                problem = repr(error)
            for client in clients:
                client.close()
            end_sessions()
            print(f"test {function.__name__}_in_{pool}: " + ("ok" if problem is None else f"FAILED: {problem}"))
            failed += problem is not None

    return run


def end_sessions():
    """Those of the pools: what comes next finds nothing that was left in one."""
    for region in "near", "middle":
        with connect(region) as superuser:
            superuser.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")


def wait_for_near():
    """HAProxy has found that the region is there again; new sessions are in it."""
    for _ in range(300):
        try:
            end_sessions()
            with connect(SESSIONS) as client:
                if value(client, "SELECT inet_server_port()") == PORT:
                    return
        except psycopg.OperationalError:
            pass  # it starts
        time.sleep(0.1)
    sys.exit("HAProxy does not go back to the nearest region")


near = connect("near")
middle = connect("middle")
PORT = near.info.port
wait_for_near()
near.execute("CREATE SEQUENCE numbers; GRANT USAGE ON SEQUENCE numbers TO app")


@test(SESSIONS)
def settings_stay_and_go_with_the_client(a, b):
    a.execute("SET onetrip.read = fresh")
    mine, others = value(a, "SHOW onetrip.read"), value(b, "SHOW onetrip.read")
    a.close()
    with connect(SESSIONS) as next_one:
        return mine == "fresh", others == "local", value(next_one, "SHOW onetrip.read") == "local"


@test(TRANSACTIONS)
def settings_are_lost_and_found_by_others(a, b):
    a.execute("SET onetrip.read = fresh")
    found = value(b, "SHOW onetrip.read")
    with b.transaction():
        b.execute("SELECT 1")
        return found == "fresh", value(a, "SHOW onetrip.read") == "local"


@test(SESSIONS, TRANSACTIONS)
def settings_of_the_transaction_work(a, b):
    with a.transaction():
        a.execute("SET LOCAL onetrip.read = fresh")
        inside = value(a, "SHOW onetrip.read")
    return inside == "fresh", value(a, "SHOW onetrip.read") == "local"


@test(SESSIONS, TRANSACTIONS)
def settings_of_the_role_work(a, b):
    a.execute("SELECT 1")
    near.execute("ALTER ROLE app IN DATABASE onetrip SET onetrip.read = fresh")
    try:
        end_sessions()
        return (value(b, "SHOW onetrip.read") == "fresh",)
    finally:
        near.execute("ALTER ROLE app IN DATABASE onetrip RESET onetrip.read")


@test(SESSIONS, TRANSACTIONS)
def settings_in_the_address_are_refused(a, b):
    pool = SESSIONS if a.info.dbname == "onetrip" else TRANSACTIONS
    try:
        connect(pool, options="-c onetrip.read=fresh").close()
    except psycopg.OperationalError as error:
        return ("unsupported startup parameter: options" in str(error),)
    return (False,)


@test(SESSIONS, TRANSACTIONS)
def ids_and_outcomes_work(a, b):
    with a.transaction():
        a.execute("INSERT INTO transfer VALUES ('pooling')")
        transaction_id = value(a, "SELECT onetrip.current_transaction_id()")
    return (value(b, "SELECT onetrip.outcome(%s)", transaction_id).startswith("committed at "),)


def two_commits(a, b):
    with a.transaction():
        a.execute("INSERT INTO transfer VALUES ('pooling')")
        first = value(a, "SELECT onetrip.current_transaction_id()")
    with b.transaction():
        b.execute("INSERT INTO transfer VALUES ('pooling')")
        second = value(b, "SELECT onetrip.current_transaction_id()")
    return first, second, value(a, "SELECT transaction_id FROM onetrip.last_commit()")


@test(SESSIONS)
def last_commit_is_ones_own(a, b):
    first, _, last = two_commits(a, b)
    return (last == first,)


@test(TRANSACTIONS)
def last_commit_may_be_anothers(a, b):
    _, second, last = two_commits(a, b)
    return (last == second,)


@test(SESSIONS, TRANSACTIONS)
def positions_work(a, b):
    with a.transaction():
        a.execute("INSERT INTO transfer VALUES ('positions')")
    middle.execute("SELECT onetrip.wait_for(%s)", [value(a, "SELECT onetrip.position()")])
    seen = value(middle, "SELECT count(*) FROM transfer WHERE by = 'positions'")
    near.execute("DELETE FROM transfer WHERE by = 'positions'")
    return (seen == 1,)


@test(SESSIONS)
def prepared_statements_work(a, b):
    a.prepare_threshold = b.prepare_threshold = 0
    return [value(client, "SELECT 1 + 1") == 2 for client in (a, b, a, b)]


@test(TRANSACTIONS)
def prepared_statements_fail(a, b):
    a.prepare_threshold = b.prepare_threshold = 0
    assert value(a, "SELECT 1 + 1") == 2
    taken = raises(errors.DuplicatePreparedStatement, b, "SELECT 1 + 2")
    b.prepare_threshold = None
    with b.transaction():
        b.execute("SELECT 1")
        return taken, raises(errors.InvalidSqlStatementName, a, "SELECT 1 + 1")


def hears(client):
    """Whether it is told what another region says."""
    heard = []
    client.add_notify_handler(heard.append)
    client.execute("LISTEN news")
    middle.execute("NOTIFY news")
    until = time.monotonic() + 10
    while not heard and time.monotonic() < until:
        client.execute("SELECT 1")
        time.sleep(0.1)
    return len(heard) > 0


@test(SESSIONS)
def listen_works(a, b):
    return (hears(a),)


@test(TRANSACTIONS)
def listen_reaches_whoever_has_the_session(a, b):
    heard = []
    b.add_notify_handler(heard.append)
    a.execute("LISTEN news")
    # A session is told when it is in no transaction: here, with the answer to COMMIT.
    with b.transaction():
        b.execute("SELECT 1")
        here = hears(near)
        time.sleep(0.5)
    near.execute("UNLISTEN news")
    return here, len(heard) > 0


@test(SESSIONS)
def advisory_locks_of_the_session_exclude(a, b):
    a.execute("SELECT pg_advisory_lock(1)")
    return (not value(b, "SELECT pg_try_advisory_lock(1)"),)


@test(TRANSACTIONS)
def advisory_locks_of_the_session_do_not_exclude(a, b):
    a.execute("SELECT pg_advisory_lock(1)")
    return (value(b, "SELECT pg_try_advisory_lock(1)"),)


@test(SESSIONS, TRANSACTIONS)
def advisory_locks_of_the_transaction_exclude(a, b):
    with a.transaction():
        a.execute("SELECT pg_advisory_xact_lock(1)")
        return (not value(b, "SELECT pg_try_advisory_xact_lock(1)"),)


@test(SESSIONS)
def temporary_tables_are_ones_own(a, b):
    a.execute("CREATE TEMPORARY TABLE mine (id int)")
    return raises(errors.UndefinedTable, b, "SELECT FROM mine"), value(a, "SELECT count(*) FROM mine") == 0


@test(TRANSACTIONS)
def temporary_tables_are_lost_and_found_by_others(a, b):
    a.execute("CREATE TEMPORARY TABLE mine (id int)")
    with b.transaction():
        found = value(b, "SELECT count(*) FROM mine")
        return found == 0, raises(errors.UndefinedTable, a, "SELECT FROM mine")


@test(SESSIONS, TRANSACTIONS)
def temporary_tables_of_the_transaction_work(a, b):
    with a.transaction():
        a.execute("CREATE TEMPORARY TABLE mine (id int) ON COMMIT DROP")
        inside = value(a, "SELECT count(*) FROM mine")
    return inside == 0, raises(errors.UndefinedTable, a, "SELECT FROM mine")


HOLD = "DECLARE kept CURSOR WITH HOLD FOR SELECT 1"


@test(SESSIONS)
def cursors_with_hold_and_currval_work(a, b):
    a.execute(HOLD)
    number = value(a, "SELECT nextval('numbers')")
    return value(a, "FETCH kept") == 1, value(a, "SELECT currval('numbers')") == number


@test(TRANSACTIONS)
def cursors_with_hold_and_currval_are_lost(a, b):
    a.execute(HOLD)
    a.execute("SELECT nextval('numbers')")
    with b.transaction():
        b.execute("SELECT 1")
        return (
            raises(errors.InvalidCursorName, a, "FETCH kept"),
            raises(errors.ObjectNotInPrerequisiteState, a, "SELECT currval('numbers')"),
        )


@test(SESSIONS, TRANSACTIONS)
def an_evicted_transaction_ends_the_connection_and_is_aborted(a, b):
    a.execute("BEGIN")
    a.execute("UPDATE account SET balance = balance WHERE id = 1")
    transaction_id = value(a, "SELECT onetrip.current_transaction_id()")
    pid = value(a, "SELECT pg_backend_pid()")
    middle.execute("UPDATE account SET balance = balance WHERE id = 1")
    until = time.monotonic() + 10
    while value(near, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid) and time.monotonic() < until:
        time.sleep(0.05)
    gone = raises(errors.OperationalError, a, "SELECT 1")
    return gone, a.closed, value(b, "SELECT onetrip.outcome(%s, settle => true)", transaction_id) == "aborted"


near.execute("DROP SEQUENCE numbers; DELETE FROM transfer WHERE by = 'pooling'")


# The last one, since the server starts again.
@test(SESSIONS, TRANSACTIONS)
def a_lost_server_ends_the_connection(a, b):
    pid = value(a, "SELECT pg_backend_pid()")
    threading.Timer(0.5, os.kill, [pid, signal.SIGKILL]).start()
    lost = raises(errors.OperationalError, a, "SELECT pg_sleep(10)")
    wait_for_near()
    return lost, a.closed


sys.exit(failed > 0)
