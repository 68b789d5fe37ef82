// Transactions on Onetrip with pgx: run again when they lose, and never twice when they have not.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var conn *pgx.Conn

func connect(ctx context.Context) *pgx.Conn {
	for conn == nil || conn.IsClosed() {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		// All regions, the nearest one first; pgx takes the first that can be written.
		next, err := pgx.Connect(limited, os.Getenv("ONETRIP_URL"))
		cancel()
		if err != nil {
			time.Sleep(100 * time.Millisecond) // an election, or a region that starts again
			continue
		}
		conn = next
	}
	return conn
}

func sqlState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// committed says whether the transaction has, from any region: it settles that, since its own may be gone or cut off.
func committed(ctx context.Context, id string) (bool, error) {
	for {
		var answer string
		err := connect(ctx).QueryRow(ctx, "SELECT onetrip.outcome($1, settle => true)", id).Scan(&answer)
		switch {
		case err == nil && strings.HasPrefix(answer, "committed"):
			return true, nil
		case err == nil && answer == "aborted":
			return false, nil
		case err == nil && answer != "unknown": // left out, or forgotten: final, and for a person to judge
			return false, fmt.Errorf("transaction %s: %s", id, answer)
		case strings.HasPrefix(sqlState(err), "22"), strings.HasPrefix(sqlState(err), "42"):
			// A wrong question, or it is not granted.
			return false, err
		case err != nil: // the connection is gone; or there is no majority here, and another region can tell
			conn.Close(ctx)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// run runs work as one transaction, until it has committed once.
func run(ctx context.Context, work func(pgx.Tx) error) error {
	for {
		var id string
		err := pgx.BeginFunc(ctx, connect(ctx), func(tx pgx.Tx) error {
			// For what became of a COMMIT that gets no answer.  Its COMMIT crosses regions even if it only reads.
			err := tx.QueryRow(ctx, "SELECT onetrip.current_transaction_id()").Scan(&id)
			if err != nil {
				return err
			}
			return work(tx)
		})
		state := sqlState(err)
		switch {
		case err == nil:
			return nil
		case state == "40001" || state == "40P01": // lost to another transaction: nothing happened
		case state == "25006": // nor here: the region has no majority any more, and another one has
			conn.Close(ctx)
		case state == "" || strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P"): // the outcome is open
			if state != "08007" {
				conn.Close(ctx)
			}
			if id != "" {
				if done, err := committed(ctx, id); done || err != nil {
					return err
				}
			}
		default:
			return err
		}
		time.Sleep(time.Duration(rand.Intn(20)) * time.Millisecond)
	}
}

func transfer(tx pgx.Tx) error {
	for _, sql := range []string{
		"UPDATE account SET balance = balance - 1 WHERE id = 1",
		"UPDATE account SET balance = balance + 1 WHERE id = 2",
		"INSERT INTO transfer VALUES ('go')",
	} {
		if _, err := tx.Exec(context.Background(), sql); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	for n := 1; err == nil && n <= count; n++ {
		if err = run(context.Background(), transfer); err == nil {
			fmt.Println(n)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	row := connect(context.Background()).QueryRow(context.Background(), "SELECT count(*) FROM transfer WHERE by = $1", "go")
	if err := row.Scan(&count); err != nil {
		log.Fatal(err)
	}
	fmt.Println(count)
}
