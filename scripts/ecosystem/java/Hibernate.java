// An application with Hibernate that starts, starts again, and runs in all regions at once.  Each test ends with a line in
// ECOSYSTEM_RESULTS.  On a plain server the "regions" are three pools of connections to it.

import jakarta.persistence.CascadeType;
import jakarta.persistence.Column;
import jakarta.persistence.ElementCollection;
import jakarta.persistence.Embeddable;
import jakarta.persistence.Entity;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.Inheritance;
import jakarta.persistence.InheritanceType;
import jakarta.persistence.LockModeType;
import jakarta.persistence.Lob;
import jakarta.persistence.ManyToMany;
import jakarta.persistence.ManyToOne;
import jakarta.persistence.OneToMany;
import jakarta.persistence.OrderColumn;
import jakarta.persistence.SequenceGenerator;
import jakarta.persistence.Table;
import jakarta.persistence.TableGenerator;
import jakarta.persistence.Version;
import java.io.FileWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.cfg.Configuration;
import org.hibernate.type.SqlTypes;

public class Hibernate {
    // ---- the application ----

    // Hibernate's default: a sequence of its own with INCREMENT 50.
    @Entity(name = "Person")
    public static class Person {
        @Id @GeneratedValue(strategy = GenerationType.SEQUENCE) Long id;
        @Column(unique = true, nullable = false) String name;
        @Version int version;
        Instant born = Instant.parse("1990-01-01T00:00:00Z");
        @ElementCollection List<String> nicknames = new ArrayList<>(); // a bag: its table has no key
        @ElementCollection Set<String> tongues = new HashSet<>();
        @ElementCollection Map<String, Integer> scores = new HashMap<>();
        @ElementCollection @OrderColumn List<Address> addresses = new ArrayList<>();
        @ManyToMany List<Project> projects = new ArrayList<>(); // a join table without a key
        @OneToMany(cascade = CascadeType.ALL, orphanRemoval = true) List<Note> notes = new ArrayList<>();
        @JdbcTypeCode(SqlTypes.JSON) Map<String, String> settings = new HashMap<>();
        String[] tags = {"a", "b"};
        Mood mood = Mood.GOOD;
    }

    public enum Mood { GOOD, BAD }

    @Embeddable
    public static class Address {
        String street;
        Integer number;

        public Address() {}

        Address(String street, Integer number) {
            this.street = street;
            this.number = number;
        }
    }

    @Entity(name = "Project")
    public static class Project {
        @Id @GeneratedValue UUID id;
        String title;
        @ManyToMany(mappedBy = "projects") List<Person> people = new ArrayList<>();
    }

    @Entity(name = "Note")
    public static class Note {
        @Id @GeneratedValue(strategy = GenerationType.IDENTITY) Integer id;
        String text;
    }

    @Entity(name = "Single")
    public static class Single {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "single")
        @SequenceGenerator(name = "single", sequenceName = "single_number", allocationSize = 1, initialValue = 1000)
        Long id;
    }

    @Entity(name = "Counted")
    public static class Counted {
        @Id
        @GeneratedValue(strategy = GenerationType.TABLE, generator = "counted")
        @TableGenerator(name = "counted", table = "counter", allocationSize = 10)
        Long id;
    }

    @Entity(name = "Vehicle")
    @Inheritance(strategy = InheritanceType.JOINED)
    public static class Vehicle {
        @Id @GeneratedValue Long id;
        @ManyToOne Person owner;
    }

    @Entity(name = "Truck")
    public static class Truck extends Vehicle {
        int tons;
    }

    // Its sequence is there already, with INCREMENT 1: what the strategy FIX is for.
    @Entity(name = "Legacy")
    public static class Legacy {
        @Id
        @GeneratedValue(strategy = GenerationType.SEQUENCE, generator = "legacy")
        @SequenceGenerator(name = "legacy", sequenceName = "legacy_number", allocationSize = 50)
        Long id;
    }

    @Entity(name = "Document")
    public static class Document {
        @Id @GeneratedValue Long id;
        @Lob String body; // a large object in PostgreSQL
    }

    static final Class<?>[] FIRST = {Person.class, Project.class, Note.class, Single.class, Counted.class, Vehicle.class, Truck.class};

    // The next version of the application: a new column, a unique constraint, a table.
    @Entity(name = "Project2")
    @Table(name = "Project")
    public static class Project2 {
        @Id @GeneratedValue UUID id;
        String title;
        @Column(unique = true) String code;
        @OneToMany List<Note> notes = new ArrayList<>();
    }

    // ---- what it runs on ----

    static final String[] PORTS = System.getenv("ECOSYSTEM_PORTS").split(" ");
    static final String DATABASE = System.getenv("ECOSYSTEM_DATABASE");

    // Settings of the sessions, as in `-c NAME=VALUE`.
    static String options = "";

    static String url(int region) {
        return "jdbc:postgresql://127.0.0.1:" + PORTS[region % PORTS.length] + "/" + DATABASE
                + "?options=" + options.replace(" ", "%20");
    }

    static SessionFactory start(int region, String ddl, Map<String, String> settings, Class<?>... entities) {
        Configuration configuration = new Configuration();
        for (Class<?> entity : entities) configuration.addAnnotatedClass(entity);
        configuration.setProperty("hibernate.connection.url", url(region));
        configuration.setProperty("hibernate.connection.username", "postgres");
        configuration.setProperty("hibernate.connection.pool_size", "4");
        configuration.setProperty("hibernate.hbm2ddl.auto", ddl);
        // Hibernate only warns of statements that fail unless it is told to stop.
        configuration.setProperty("hibernate.hbm2ddl.halt_on_error", "true");
        settings.forEach(configuration::setProperty);
        return configuration.buildSessionFactory();
    }

    static String sql(int region, String statement) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url(region), "postgres", "");
                var run = connection.createStatement()) {
            if (!run.execute(statement)) return "";
            ResultSet rows = run.getResultSet();
            return rows.next() ? rows.getString(1) : "";
        }
    }

    // Waits until every region has what is committed in region 0.
    static void everywhere() throws Exception {
        sql(0, "CREATE TABLE IF NOT EXISTS mark (n int PRIMARY KEY)");
        String n = sql(0, "INSERT INTO mark SELECT coalesce(max(n), 0) + 1 FROM mark RETURNING n");
        for (int region = 1; region < PORTS.length; region++) {
            for (int tries = 0;; tries++) {
                try {
                    if (!sql(region, "SELECT n FROM mark WHERE n = " + n).isEmpty()) break;
                } catch (SQLException missing) {
                    if (!"42P01".equals(missing.getSQLState())) throw missing;
                }
                if (tries == 600) throw new IllegalStateException("a region is not there after a minute");
                Thread.sleep(100);
            }
        }
    }

    static void in(SessionFactory factory, Consumer<Session> work) {
        factory.inTransaction(work);
    }

    static void equal(Object seen, Object wanted) {
        if (!wanted.equals(seen)) throw new IllegalStateException("got " + seen + ", not " + wanted);
    }

    // ---- the tests ----

    interface Test {
        void run() throws Exception;
    }

    static FileWriter results;

    static void test(String name, Test test) throws Exception {
        String outcome = "ok\t";
        try {
            test.run();
        } catch (Throwable error) {
            error.printStackTrace();
            Throwable cause = error;
            while (cause.getCause() != null) cause = cause.getCause();
            outcome = "failed\t" + cause.toString().replaceAll("\\s+", " ");
        }
        results.write(name + "\t" + outcome + "\n");
        results.flush();
    }

    // Rows with generated keys from all regions at once, 300 each in transactions of 10.  All must come, each key once.
    static void blocks(Class<?> entity, Map<String, String> settings, Callable<?> make, Class<?>... entities) throws Exception {
        everywhere();
        ExecutorService pool = Executors.newFixedThreadPool(6);
        List<SessionFactory> factories = new ArrayList<>();
        List<Future<?>> work = new ArrayList<>();
        for (int n = 0; n < 6; n++) {
            SessionFactory factory = start(n % 3, "none", settings, entities);
            factories.add(factory);
            work.add(pool.submit(() -> {
                for (int transaction = 0; transaction < 30; transaction++) {
                    in(factory, session -> {
                        try {
                            for (int row = 0; row < 10; row++) session.persist(make.call());
                        } catch (Exception error) {
                            throw new IllegalStateException(error);
                        }
                    });
                }
                return null;
            }));
        }
        pool.shutdown();
        for (Future<?> one : work) one.get();
        for (SessionFactory factory : factories) factory.close();
        everywhere();
        for (int region = 0; region < PORTS.length; region++) {
            String table = entity.getSimpleName().toLowerCase();
            String more = "SELECT (count(*) >= 1800 AND count(*) = count(DISTINCT id))::text FROM " + table;
            for (int tries = 0; tries < 100 && !sql(region, more).equals("true"); tries++) Thread.sleep(100);
            equal(sql(region, more), "true");
        }
    }

    public static void main(String[] arguments) throws Exception {
        results = new FileWriter(System.getenv("ECOSYSTEM_RESULTS"), true);
        Map<String, String> plain = Map.of();
        test("first_start_creates", () -> start(0, "create", plain, FIRST).close());
        test("second_start_validates", () -> start(0, "validate", plain, FIRST).close());
        test("second_start_updates", () -> start(0, "update", plain, FIRST).close());
        test("other_regions_validate", () -> {
            everywhere();
            start(1, "validate", plain, FIRST).close();
            start(2, "update", plain, FIRST).close();
        });
        test("collections", () -> {
            try (SessionFactory factory = start(0, "none", plain, FIRST)) {
                in(factory, session -> {
                    for (int n = 0; n < 3; n++) {
                        Person person = new Person();
                        person.name = "person " + n;
                        person.nicknames.addAll(List.of("x", "x", "y"));
                        person.tongues.addAll(Set.of("en", "de"));
                        person.scores.putAll(Map.of("a", 1, "b", 2));
                        person.addresses.add(new Address("first", 1));
                        person.addresses.add(new Address("second", null));
                        Note note = new Note();
                        note.text = "note";
                        person.notes.add(note);
                        person.settings.put("colour", "red");
                        Project project = new Project();
                        project.title = "project " + n;
                        session.persist(project);
                        person.projects.add(project);
                        person.projects.add(project);
                        Truck truck = new Truck();
                        truck.owner = person;
                        session.persist(person);
                        session.persist(truck);
                    }
                });
                in(factory, session -> {
                    Person person = session.createQuery("from Person where name = 'person 1'", Person.class).getSingleResult();
                    person.nicknames.remove("x");
                    person.tongues.remove("de");
                    person.scores.put("a", 5);
                    person.addresses.remove(0);
                    person.notes.clear();
                    person.projects.remove(0);
                    person.settings.put("colour", "blue");
                    person.mood = Mood.BAD;
                });
                in(factory, session -> {
                    Person person = session.createQuery("from Person where name = 'person 1'", Person.class).getSingleResult();
                    equal(person.nicknames.size(), 2);
                    equal(person.tongues, Set.of("en"));
                    equal(person.scores, Map.of("a", 5, "b", 2));
                    equal(person.addresses.get(0).street, "second");
                    equal(person.notes.size(), 0);
                    equal(person.projects.size(), 1);
                    equal(person.version, 1);
                    session.createMutationQuery("delete from Truck where owner.name = 'person 1'").executeUpdate();
                    session.remove(person);
                });
                in(factory, session -> equal(session.createQuery("select count(*) from Person", Long.class).getSingleResult(), 2L));
            }
        });
        test("bulk_statements", () -> {
            try (SessionFactory factory = start(0, "none", plain, FIRST)) {
                // On a joined hierarchy these go through a temporary table.
                in(factory, session -> {
                    equal(session.createMutationQuery("update Truck set tons = tons + 1").executeUpdate(), 2);
                    equal(session.createMutationQuery("insert into Note (text) select p.name from Person p").executeUpdate(), 2);
                    equal(session.createMutationQuery("delete from Vehicle").executeUpdate(), 2);
                });
            }
        });
        test("locks", () -> {
            try (SessionFactory factory = start(0, "none", plain, FIRST)) {
                in(factory, session -> {
                    Person person = session.createQuery("from Person where name = 'person 0'", Person.class)
                            .setLockMode(LockModeType.PESSIMISTIC_WRITE).getSingleResult();
                    in(factory, other -> equal(other.createQuery("from Person order by id", Person.class)
                            .setLockMode(LockModeType.PESSIMISTIC_WRITE).setHint("jakarta.persistence.lock.timeout", -2)
                            .getResultList().size(), 1));
                    session.lock(person, LockModeType.OPTIMISTIC_FORCE_INCREMENT);
                });
            }
        });
        test("blocks_of_50_in_all_regions", () -> blocks(Person.class, plain, () -> {
            Person person = new Person();
            person.name = UUID.randomUUID().toString();
            return person;
        }, FIRST));
        test("blocks_of_50_pooled_lo", () -> blocks(Vehicle.class, Map.of("hibernate.id.optimizer.pooled.preferred", "pooled-lo"),
                Vehicle::new, FIRST));
        test("single_numbers_in_all_regions", () -> blocks(Single.class, plain, Single::new, FIRST));
        test("identity_in_all_regions", () -> blocks(Note.class, plain, Note::new, FIRST));
        // All regions change one row, in transactions of Hibernate's own, which it does not repeat.
        options = "-c onetrip.concurrency=locking";
        test("table_generator_in_all_regions", () -> blocks(Counted.class, plain, Counted::new, FIRST));
        options = "";
        Map<String, String> fix = Map.of("hibernate.id.sequence.increment_size_mismatch_strategy", "FIX");
        test("fix_start", () -> {
            sql(0, "CREATE SEQUENCE legacy_number");
            sql(0, "CREATE TABLE legacy (id bigint PRIMARY KEY)");
            start(0, "validate", fix, Legacy.class).close();
        });
        test("fix_in_all_regions", () -> blocks(Legacy.class, fix, Legacy::new, Legacy.class));
        test("fix_of_a_share", () -> {
            // Blocks that fit already stay as they are.
            sql(0, "DROP SEQUENCE legacy_number");
            sql(0, "CREATE SEQUENCE legacy_number INCREMENT 50 START 100001");
            sql(0, "TRUNCATE legacy");
            blocks(Legacy.class, fix, Legacy::new, Legacy.class);
            start(0, "validate", plain, Legacy.class).close();
        });
        test("next_version_updates", () -> {
            start(0, "update", plain, Project2.class, Note.class).close();
            start(0, "validate", plain, Project2.class, Note.class).close();
            everywhere();
            start(1, "validate", plain, Project2.class, Note.class).close();
        });
        test("lob", () -> {
            try (SessionFactory factory = start(0, "create", plain, Document.class)) {
                in(factory, session -> {
                    Document document = new Document();
                    document.body = "long";
                    session.persist(document);
                });
            }
        });
        test("create_and_drop", () -> start(0, "create-drop", plain, FIRST).close());
        results.close();
    }
}
