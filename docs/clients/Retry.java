import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/** Transactions on Onetrip with pgJDBC: run again when they lose, and never twice when they have not. */
public class Retry {
    /** All regions, the nearest one first; with targetServerType=primary, the first that can be written is taken. */
    private static final String URL = System.getenv("ONETRIP_JDBC_URL");
    /** Lost to another transaction: nothing happened. */
    private static final Set<String> LOST = Set.of("40001", "40P01");
    /** The region takes no changes any more, as it has no majority: nothing happened, and another region has one. */
    private static final String READ_ONLY = "25006";

    private static Connection connection;

    interface Work {
        void run(Connection connection) throws SQLException;
    }

    static Connection connect() throws InterruptedException {
        while (connection == null) {
            try {
                connection = DriverManager.getConnection(URL);
                connection.setAutoCommit(false);
            } catch (SQLException e) {
                drop();
                Thread.sleep(100); // an election, or a region that starts again
            }
        }
        return connection;
    }

    static void drop() {
        try {
            if (connection != null) connection.close();
        } catch (SQLException e) {
            // It is gone either way.
        }
        connection = null;
    }

    static String ask(String sql, String... parameters) throws SQLException, InterruptedException {
        try (PreparedStatement statement = connect().prepareStatement(sql)) {
            for (int i = 0; i < parameters.length; i++) statement.setString(i + 1, parameters[i]);
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getString(1);
            }
        }
    }

    /** Whether the transaction has committed, from any region: settles it, since its own may be gone or cut off. */
    static boolean committed(String id) throws SQLException, InterruptedException {
        while (true) {
            try {
                String answer = ask("SELECT onetrip.outcome(?, settle => true)", id);
                connection.rollback();
                if (answer.startsWith("committed")) return true;
                if (answer.equals("aborted")) return false;
                // Left out, or forgotten: final, and for a person to judge.
                if (!answer.equals("unknown")) throw new IllegalStateException("transaction " + id + ": " + answer);
            } catch (SQLException e) {
                String state = e.getSQLState() == null ? "" : e.getSQLState();
                if (state.startsWith("22") || state.startsWith("42")) throw e; // a wrong question, or it is not granted
                drop(); // the connection is gone; or there is no majority here, and another region can tell
            }
            Thread.sleep(100);
        }
    }

    /** Runs the work as one transaction, until it has committed once. */
    static void run(Work work) throws SQLException, InterruptedException {
        while (true) {
            String id = null;
            try {
                // For what became of a COMMIT that gets no answer.  Its COMMIT crosses regions even if it only reads.
                id = ask("SELECT onetrip.current_transaction_id()");
                work.run(connection);
                connection.commit();
                return;
            } catch (SQLException e) {
                String state = e.getSQLState() == null ? "" : e.getSQLState();
                if (LOST.contains(state)) {
                    try {
                        connection.rollback();
                    } catch (SQLException gone) {
                        drop();
                    }
                } else if (state.equals(READ_ONLY)) {
                    drop();
                } else if (state.startsWith("08") || state.startsWith("57P")) {
                    // The outcome is open: 08007 says so; the others, that the connection is gone.
                    drop();
                    if (id != null && committed(id)) return;
                } else {
                    connection.rollback();
                    throw e;
                }
                Thread.sleep(ThreadLocalRandom.current().nextInt(20));
            }
        }
    }

    static void transfer(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE account SET balance = balance - 1 WHERE id = 1");
            statement.executeUpdate("UPDATE account SET balance = balance + 1 WHERE id = 2");
            statement.executeUpdate("INSERT INTO transfer VALUES ('java')");
        }
    }

    public static void main(String[] args) throws Exception {
        for (int n = 1; n <= Integer.parseInt(args[0]); n++) {
            run(Retry::transfer);
            System.out.println(n);
        }
        System.out.println(ask("SELECT count(*) FROM transfer WHERE by = ?", "java"));
    }
}
