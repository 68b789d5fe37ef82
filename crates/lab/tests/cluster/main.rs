//! Cluster tests: three real nodes, three real PostgreSQL servers, and the real `onetrip` command, as a user would
//! run them.
//!
//! There is one test for each subject, and one file for subjects that are alike; `lab` contains what the tests share.
//! Clusters are expensive, so two run at a time at most, and the steps of a subject share one.  Several small subjects
//! share one cluster too, and each of them fails by itself (`lab::Subjects`).  All tests are in one executable because
//! linking one is quicker than linking one for each file; `cargo test --release -p onetrip-lab --test cluster kill9`
//! runs one file.
//!
//! `ONETRIP_TEST_SECONDS` limits how long a workload runs (default 15); `ONETRIP_KEEP` keeps the clusters' folders.

mod adopt;
/// Tests that run alone (`lab::ALONE`), and what shares a file with them.  Tests begin in the order of their names:
/// here each of these follows another one, and none waits, with half of the room empty, for one of the others to end.
#[path = "."]
mod alone {
    mod arrival;
    mod cluster_view;
    mod everywhere;
    mod fairness;
    mod fresh;
    mod leader_place;
    mod lease_clocks;
    mod leases;
    mod nothing_deadlocks;
    mod parts;
    mod poison;
    mod rehearsal;
    mod run_again;
    mod torture;
    mod traces;
    mod values;
    mod workloads;
}
mod backup;
mod bad_input;
mod before_turn;
mod census;
mod check_finds;
mod conflicts;
mod crossings;
mod ddl;
mod ddl_at_once;
mod detach;
mod dump;
mod elsewhere;
mod eviction;
mod grouped_apply;
mod jobs;
mod kill9;
mod lab;
mod large;
mod large_objects;
mod left_out;
mod load;
mod logical;
mod long_fork;
mod membership;
mod metrics;
mod no_majority;
mod notify;
mod outcomes;
mod pairs;
mod partition;
mod prepared;
mod recipes;
mod reindex;
mod retries;
mod row_locks;
mod rows;
mod sequences;
mod serializable;
mod short_sequences;
mod side_by_side;
mod statements;
mod stored_values;
mod stuck_worker;
mod subscription;
mod tablespaces;
mod temporary_children;
mod temporary_functions;
mod unique_jobs;
mod whole_rows;
