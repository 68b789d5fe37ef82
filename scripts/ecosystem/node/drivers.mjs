// Drivers: COPY, cursors, notifications and pipelines of node-postgres, and of postgres.js.

import assert from 'node:assert/strict'
import pg from 'pg'
import Cursor from 'pg-cursor'
import { from, to } from 'pg-copy-streams'
import postgres from 'postgres'
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { connection, everywhere, regions, sql, test, url } from './results.mjs'

const ROWS = 20000

export async function run() {
    const clients = regions.map(port => new pg.Client(connection(port)))
    for (const client of clients) await client.connect()
    const [first, second, last] = clients
    await test('pg: COPY in', async () => {
        await first.query('create table copied (id int primary key, x text, at timestamptz)')
        const lines = Readable.from((function* () {
            for (let n = 0; n < ROWS; n++) yield `${n}\tline ${n}\t2026-01-01 00:00:00+00\n`
        })())
        await pipeline(lines, first.query(from('copy copied from stdin')))
    })
    await test('pg: COPY out', async () => {
        const stream = last.query(to('copy (select * from copied order by id) to stdout'))
        let bytes = 0
        for await (const chunk of stream) bytes += chunk.toString().split('\n').length - 1
        assert.equal(bytes, ROWS)
    })
    await test('pg: cursor', async () => {
        const cursor = second.query(new Cursor('select id from copied order by id'))
        let rows = 0
        for (let read; (read = await cursor.read(3000)).length;) rows += read.length
        await cursor.close()
        assert.equal(rows, ROWS)
    })
    await test('pg: named statements', async () => {
        for (let n = 0; n < 20; n++)
            assert.equal((await second.query({ name: 'change', text: 'update copied set x = $2 where id = $1', values: [n, `changed ${n}`] })).rowCount, 1)
        const { rows } = await second.query({ text: 'select id, x from copied where id < 3 order by id', rowMode: 'array' })
        assert.deepEqual(rows, [[0, 'changed 0'], [1, 'changed 1'], [2, 'changed 2']])
    })
    await test('pg: notifications reach other regions', async () => {
        await last.query('listen news')
        const heard = once(last, 'notification')
        await first.query("notify news, 'hello'")
        assert.equal((await heard)[0].payload, 'hello')
    })
    await test('pg: errors say what PostgreSQL says', async () => {
        await assert.rejects(first.query('insert into copied values (1)'), { code: '23505', constraint: 'copied_pkey', table: 'copied', schema: 'public' })
        await assert.rejects(first.query('select * from nothing'), { code: '42P01', position: '15' })
    })
    await test('pg: pool', async () => {
        const pool = new pg.Pool({ ...connection(regions[1]), max: 8 })
        await Promise.all(Array.from({ length: 200 }, (_, n) => pool.query('update copied set x = $1 where id = $2', [`pool ${n}`, 100 + n])))
        await pool.end()
    })
    for (const client of clients) await client.end()

    const one = postgres(url(regions[0]), { max: 4, onnotice() {} })
    const other = postgres(url(regions[2]), { max: 4, onnotice() {} })
    await test('postgres.js: pipeline', async () => {
        await one`create table piped (id bigint generated always as identity primary key, v jsonb, tags text[])`
        await one.begin(tx => Array.from({ length: 50 }, (_, n) => tx`insert into piped (v, tags) values (${tx.json({ n })}, ${['a', `b${n}`]})`))
        assert.equal((await one`select count(*)::int as n from piped`)[0].n, 50)
    })
    await test('postgres.js: many rows and savepoints', async () => {
        await other.begin('isolation level repeatable read', async tx => {
            await tx`insert into piped ${tx([{ tags: ['x'] }, { tags: ['y'] }], 'tags')}`
            await tx.savepoint(async inner => { await inner`select 1 / 0` }).catch(error => assert.equal(error.code, '22012'))
            await tx`delete from piped where tags = ${['x']}`
        })
        assert.equal((await other`select count(*)::int as n from piped`)[0].n, 51)
    })
    await test('postgres.js: listen', async () => {
        let heard
        const said = new Promise(resolve => { heard = resolve })
        await other.listen('more', heard)
        await one.notify('more', 'news')
        assert.equal(await said, 'news')
    })
    await test('postgres.js: COPY and cursor', async () => {
        const writable = await other`copy piped (tags) from stdin`.writable()
        await pipeline(Readable.from(['{p}\n', '{q}\n']), writable)
        let rows = 0
        await other`select * from piped`.cursor(10, batch => { rows += batch.length })
        assert.equal(rows, 53)
    })
    await test('postgres.js: large objects', async () => {
        const [{ id }] = await one`select lo_from_bytea(0, 'abc') as id`
        const large = await one.largeObject(id)
        await large.write(Buffer.from('xyz'))
        await large.close()
        await everywhere()
        assert.equal((await sql(regions[1], `select convert_from(lo_get(${id}), 'UTF8') as t`))[0].t, 'xyz')
        await sql(regions[1], `select lo_unlink(${id})`)
    })
    await test('drivers: drop', () => sql(regions[1], 'drop table copied, piped'))
    await one.end()
    await other.end()
}
