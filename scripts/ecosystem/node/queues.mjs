// Queues in PostgreSQL, with workers in all regions at once: each job must be done once.  And node-pg-migrate.

import assert from 'node:assert/strict'
import { run as work, makeWorkerUtils, runMigrations } from 'graphile-worker'
import { runner as migrate } from 'node-pg-migrate'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import PgBoss from 'pg-boss'
import { everywhere, regions, sql, test, url } from './results.mjs'

const JOBS = 60
const until = async (what, done) => {
    for (let tries = 0; !(await done()); tries++) {
        assert.ok(tries < 600, what)
        await new Promise(resolve => setTimeout(resolve, 50))
    }
}
const quiet = { error() {}, warn() {}, info() {}, debug() {} }

async function graphile() {
    const { Logger } = await import('graphile-worker')
    const logger = new Logger(() => () => {})
    await test('graphile-worker: install', () => runMigrations({ connectionString: url(regions[0]), logger }))
    await test('graphile-worker: nothing to install elsewhere', () => runMigrations({ connectionString: url(regions[2]), logger }))
    await test('graphile-worker: jobs are done once', async () => {
        const done = []
        const taskList = { note: async payload => { done.push(payload.n) } }
        const runners = []
        for (const port of regions)
            runners.push(await work({ connectionString: url(port), concurrency: 2, pollInterval: 200, noHandleSignals: true, taskList, logger }))
        const utils = await makeWorkerUtils({ connectionString: url(regions[1]), logger })
        for (let n = 0; n < JOBS; n++) await utils.addJob('note', { n }, { queueName: n % 3 ? undefined : 'in order', jobKey: `job ${n}` })
        await until('all jobs are done', async () => new Set(done).size === JOBS)
        await until('no job is left', async () => (await sql(regions[1], 'select count(*)::int as n from graphile_worker.jobs'))[0].n === 0)
        await Promise.all(runners.map(each => each.stop()))
        await utils.release()
        assert.equal(done.length, JOBS)
    })
    await test('graphile-worker: remove', () => sql(regions[2], 'drop schema graphile_worker cascade'))
}

async function boss() {
    const bosses = regions.map(port => new PgBoss({ connectionString: url(port), max: 3, monitorStateIntervalSeconds: 1, maintenanceIntervalSeconds: 1 }))
    bosses.forEach(each => each.on('error', error => console.error('pg-boss', error)))
    await test('pg-boss: start', async () => {
        await bosses[0].start()
        await everywhere()
        await bosses[1].start()
        await bosses[2].start()
    })
    await test('pg-boss: jobs are done once', async () => {
        const done = []
        for (const each of bosses) await each.work('note', { newJobCheckInterval: 100, teamSize: 4, teamConcurrency: 4 }, async job => { done.push(job.data.n) })
        for (let n = 0; n < JOBS; n++) await bosses[n % 3].send('note', { n })
        await until('all jobs are done', async () => new Set(done).size === JOBS)
        assert.equal(done.length, JOBS)
    })
    await test('pg-boss: one at a time', async () => {
        const ids = []
        for (let n = 0; n < 3; n++) ids.push(await bosses[0].send('single', { n }, { singletonKey: 'one' }))
        assert.equal(ids.filter(id => id).length, 1)
    })
    await test('pg-boss: schedule, archive, stop', async () => {
        await bosses[2].schedule('nightly', '0 3 * * *')
        assert.equal((await bosses[2].getSchedules()).length, 1)
        await bosses[2].archive()
        for (const each of bosses) await each.stop({ graceful: false })
        await new Promise(resolve => setTimeout(resolve, 500))
        await sql(regions[1], 'drop schema pgboss cascade')
    })
}

async function pgMigrate() {
    const dir = mkdtempSync(join(tmpdir(), 'onetrip-migrations-'))
    writeFileSync(join(dir, '1700000000001_first.cjs'), `
        exports.up = pgm => {
            pgm.createType('shade', ['dark', 'light'])
            pgm.createTable('wall', { id: 'id', shade: { type: 'shade', notNull: true, default: 'dark' }, at: { type: 'timestamp', default: pgm.func('current_timestamp') } })
            pgm.createFunction('painted', [], { returns: 'trigger', language: 'plpgsql' }, "begin new.at = now(); return new; end")
            pgm.createTrigger('wall', 'paint', { when: 'BEFORE', operation: 'UPDATE', level: 'ROW', function: 'painted' })
            pgm.createMaterializedView('shades', {}, 'select shade, count(*) from wall group by shade')
            pgm.createPolicy('wall', 'all_see', { command: 'SELECT', role: 'PUBLIC', using: 'true' })
            pgm.createDomain('percent', 'int', { check: 'value between 0 and 100' })
            pgm.createSequence('paint_no', { increment: 5 })
        }
        exports.down = pgm => {
            pgm.dropMaterializedView('shades'); pgm.dropTable('wall'); pgm.dropFunction('painted', [])
            pgm.dropType('shade'); pgm.dropDomain('percent'); pgm.dropSequence('paint_no')
        }`)
    const options = (port, direction, more) => ({
        databaseUrl: url(port), dir, direction, migrationsTable: 'pgmigrations', logger: quiet, singleTransaction: false, noLock: false, ...more,
    })
    await test('node-pg-migrate: up', async () => {
        assert.equal((await migrate(options(regions[0], 'up'))).length, 1)
        await sql(regions[0], "insert into wall (shade) values ('dark'), ('light')")
    })
    await test('node-pg-migrate: the rest elsewhere', async () => {
        writeFileSync(join(dir, '1700000000002_second.cjs'), `
            exports.up = pgm => {
                pgm.noTransaction()
                pgm.addTypeValue('shade', 'grey', { after: 'dark' })
                pgm.addColumns('wall', { cover: { type: 'percent', notNull: true, default: 7 } })
                pgm.addConstraint('wall', 'covered', { check: 'cover > 0' })
                pgm.createIndex('wall', 'shade', { concurrently: true, name: 'wall_shade' })
            }
            exports.down = pgm => { pgm.dropIndex('wall', 'shade', { name: 'wall_shade' }); pgm.dropColumns('wall', ['cover']) }`)
        assert.equal((await migrate(options(regions[1], 'up'))).length, 1)
        await sql(regions[1], "update wall set shade = 'grey' where shade = 'light'; refresh materialized view shades")
    })
    await test('node-pg-migrate: another increment', async () => {
        writeFileSync(join(dir, '1700000000003_third.cjs'), `
            exports.up = pgm => pgm.alterSequence('paint_no', { increment: 2 })
            exports.down = () => {}`)
        assert.equal((await migrate(options(regions[1], 'up'))).length, 1)
    })
    await test('node-pg-migrate: down in the last region', async () => {
        const done = await sql(regions[2], 'select count(*)::int as n from pgmigrations')
        assert.equal((await migrate(options(regions[2], 'down', { count: done[0].n }))).length, done[0].n)
        await sql(regions[2], 'drop table pgmigrations')
    })
}

export async function run() {
    await graphile()
    await boss()
    await pgMigrate()
}
