// Transactions on Onetrip with node-postgres: run again when they lose, and never twice when they have not.
'use strict';
const { Client } = require('pg');

// node-postgres takes one host, so the regions are tried in turn, the nearest one first.
const urls = process.env.ONETRIP_URLS.split(' ');
// A region that hangs is given up after so many ms; a COMMIT may take onetrip.commit_timeout.
const LIMIT = 15000;
// Lost to another transaction: nothing happened.
const LOST = ['40001', '40P01'];
// The region takes no changes any more, as it has no majority: nothing happened, and another region has one.
const READ_ONLY = '25006';

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let client = null;

async function connect() {
  for (let n = 0; client === null; n++) {
    const url = urls[n % urls.length];
    const next = new Client({ connectionString: url, connectionTimeoutMillis: 3000, query_timeout: LIMIT });
    next.on('error', () => { if (client === next) client = null; });
    try {
      await next.connect();
      const { rows } = await next.query('SHOW transaction_read_only');
      if (rows[0].transaction_read_only === 'off') client = next;
      else {
        await next.end();
        if ((n + 1) % urls.length === 0) await sleep(100); // no region has a majority
      }
    } catch {
      next.end().catch(() => {});
      await sleep(100); // an election, or a region that starts again
    }
  }
  return client;
}

function drop() {
  if (client !== null) client.end().catch(() => {});
  client = null;
}

// Whether the transaction has committed, from any region: settles it, since its own may be gone or cut off.
async function outcome(id) {
  for (;;) {
    let answer = 'unknown';
    try {
      const { rows } = await (await connect()).query('SELECT onetrip.outcome($1, settle => true)', [id]);
      answer = rows[0].outcome;
    } catch (error) {
      if (/^(22|42)/.test(error.code ?? '')) throw error; // a wrong question, or it is not granted
      drop(); // the connection is gone; or there is no majority here, and another region can tell
    }
    if (answer.startsWith('committed')) return true;
    if (answer === 'aborted') return false;
    // Left out, or forgotten: final, and for a person to judge.
    if (answer !== 'unknown') throw new Error(`transaction ${id}: ${answer}`);
    await sleep(100);
  }
}

// Runs work(client) as one transaction, until it has committed once.
async function run(work) {
  for (;;) {
    let id = null;
    try {
      const db = await connect();
      await db.query('BEGIN');
      // For what became of a COMMIT that gets no answer.  Its COMMIT crosses regions even if it only reads.
      id = (await db.query('SELECT onetrip.current_transaction_id() AS id')).rows[0].id;
      const result = await work(db);
      await db.query('COMMIT');
      return result;
    } catch (error) {
      const code = error.code ?? '';
      if (LOST.includes(code)) {
        await client?.query('ROLLBACK').catch(drop);
      } else if (code === READ_ONLY) {
        drop();
      } else {
        // 08007: the outcome is open.  08..., 57P..., or no SQLSTATE: the connection is gone.
        if (/^[0-9A-Z]{5}$/.test(code) && !/^(08|57P)/.test(code)) {
          await client?.query('ROLLBACK').catch(drop);
          throw error;
        }
        if (code !== '08007') drop();
        if (id !== null && (await outcome(id))) return null;
      }
      await sleep(Math.random() * 20);
    }
  }
}

async function transfer(db) {
  await db.query('UPDATE account SET balance = balance - 1 WHERE id = 1');
  await db.query('UPDATE account SET balance = balance + 1 WHERE id = 2');
  await db.query("INSERT INTO transfer VALUES ('javascript')");
}

async function main() {
  for (let n = 1; n <= Number(process.argv[2]); n++) {
    await run(transfer);
    console.log(n);
  }
  const { rows } = await (await connect()).query("SELECT count(*) FROM transfer WHERE by = 'javascript'");
  console.log(rows[0].count);
  drop();
}

main().catch((error) => { console.error(error); process.exit(1); });
