"""Transactions on Onetrip with psycopg 3: run again when they lose, and never twice when they have not."""

import os
import random
import sys
import time

import psycopg

# All regions, the nearest one first; libpq takes the first that can be written.
URL = os.environ["ONETRIP_URL"]
# Lost to another transaction: nothing happened.
LOST = ("40001", "40P01")
# The region takes no changes any more, as it has no majority: nothing happened, and another region has one.
READ_ONLY = "25006"

connection = None


def connect():
    global connection
    while connection is None or connection.closed:
        try:
            # Prepared statements belong to a session of the server, which a pool of transactions gives to others.
            connection = psycopg.connect(URL, connect_timeout=5, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError:
            time.sleep(0.1)  # an election, or a region that starts again
    return connection


def outcome(transaction_id):
    """Whether the transaction has committed, from any region: settles it, since its own may be gone or cut off."""
    while True:
        try:
            question = "SELECT onetrip.outcome(%s, settle => true)"
            answer = connect().execute(question, [transaction_id]).fetchone()[0]
            if answer.startswith("committed"):
                return True
            if answer == "aborted":
                return False
            if answer != "unknown":  # left out, or forgotten: final, and for a person to judge
                raise RuntimeError(f"transaction {transaction_id}: {answer}")
        except psycopg.OperationalError:
            # The connection is gone; or there is no majority here, and another region can tell.
            if connection is not None:
                connection.close()
        time.sleep(0.1)


def run(work):
    """Runs work(connection) as one transaction, until it has committed once."""
    while True:
        transaction_id = None
        try:
            with connect().transaction():
                # For what became of a COMMIT that gets no answer.  Its COMMIT crosses regions even if it only reads.
                row = connection.execute("SELECT onetrip.current_transaction_id()").fetchone()
                transaction_id = row[0]
                return work(connection)
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY:
                connection.close()
            elif error.sqlstate not in LOST:
                # 08007: the outcome is open; the others, and without any code: the connection is gone.
                if error.sqlstate is not None and not error.sqlstate.startswith(("08", "57P")):
                    raise
                if error.sqlstate != "08007":
                    connection.close()
                if transaction_id is not None and outcome(transaction_id):
                    return None
            time.sleep(random.uniform(0, 0.02))


def transfer(connection):
    connection.execute("UPDATE account SET balance = balance - 1 WHERE id = 1")
    connection.execute("UPDATE account SET balance = balance + 1 WHERE id = 2")
    connection.execute("INSERT INTO transfer VALUES ('python')")


if __name__ == "__main__":
    for n in range(int(sys.argv[1])):
        run(transfer)
        print(n + 1, flush=True)
    print(connect().execute("SELECT count(*) FROM transfer WHERE by = 'python'").fetchone()[0])
