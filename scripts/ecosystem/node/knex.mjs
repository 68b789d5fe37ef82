// Knex: migrations with a lock table, rolled back in another region; savepoints, upserts, batches.

import assert from 'node:assert/strict'
import knex from 'knex'
import { connection, everywhere, regions, test } from './results.mjs'

const migrations = {
    '1_people': {
        up: async db => {
            await db.schema.createTable('people', table => {
                table.increments('id')
                table.string('name').notNullable().unique()
                table.enu('mood', ['good', 'bad'], { useNative: true, enumName: 'knex_mood' }).defaultTo('good')
                table.jsonb('settings').defaultTo('{}')
                table.specificType('tags', 'text[]')
                table.timestamps(true, true)
            })
            await db.schema.createTable('notes', table => {
                table.uuid('id').primary().defaultTo(db.raw('gen_random_uuid()'))
                table.integer('person_id').references('people.id').onDelete('CASCADE').index()
                table.text('body')
            })
            await db.schema.createTable('people_notes', table => {
                table.integer('person_id').references('people.id')
                table.uuid('note_id').references('notes.id')
            })
        },
        down: async db => {
            await db.schema.dropTable('people_notes').dropTable('notes').dropTable('people')
            await db.raw('drop type knex_mood')
        },
    },
    '2_changes': {
        up: async db => {
            await db.schema.alterTable('people', table => {
                table.bigInteger('visits').notNullable().defaultTo(0)
                table.renameColumn('name', 'full_name')
                table.string('nickname', 20)
                table.index(['full_name', 'visits'], 'people_by_name')
                table.check('visits >= 0', [], 'no_negative_visits')
            })
            await db.schema.alterTable('people', table => {
                table.text('nickname').alter()
                table.dropNullable('settings')
            })
            await db.schema.renameTable('people_notes', 'notes_of_people')
            await db.schema.createView('busy', view => {
                view.columns(['id'])
                view.as(db('people').select('id').where('visits', '>', 1))
            })
        },
        down: async db => {
            await db.schema.dropView('busy')
            await db.schema.renameTable('notes_of_people', 'people_notes')
            await db.schema.alterTable('people', table => {
                table.dropIndex(null, 'people_by_name')
                table.dropColumns('visits', 'nickname')
                table.renameColumn('full_name', 'name')
            })
        },
    },
    '3_concurrently': {
        config: { transaction: false },
        up: db => db.raw('create index concurrently notes_body on notes (body)'),
        down: db => db.raw('drop index concurrently notes_body'),
    },
}
const migrationSource = {
    getMigrations: async () => Object.keys(migrations),
    getMigrationName: name => name,
    getMigration: async name => migrations[name],
}

export async function run() {
    const dbs = regions.map(port => knex({
        client: 'pg', connection: connection(port), pool: { min: 0, max: 4 }, migrations: { migrationSource },
    }))
    const [first, second, last] = dbs
    await test('knex: migrate', async () => assert.equal((await first.migrate.latest())[1].length, 3))
    await test('knex: nothing to migrate in the last region', async () => {
        assert.equal((await last.migrate.latest())[1].length, 0)
        assert.deepEqual((await last.migrate.list())[1], [])
    })
    await test('knex: insert and return', async () => {
        const [row] = await second('people').insert({ full_name: 'Ada', tags: ['x', 'y'] }).returning('*')
        assert.equal(row.mood, 'good')
        assert.deepEqual(row.tags, ['x', 'y'])
        await second('notes').insert({ person_id: row.id, body: 'first' })
    })
    await test('knex: upsert', async () => {
        await last('people').insert({ full_name: 'Ada', visits: 5 }).onConflict('full_name').merge(['visits'])
        await last('people').insert({ full_name: 'Ada' }).onConflict().ignore()
        assert.equal((await last('busy')).length, 1)
    })
    await test('knex: batch', async () => {
        const rows = Array.from({ length: 500 }, (_, n) => ({ full_name: `person ${n}`, settings: { n } }))
        assert.equal((await first.batchInsert('people', rows, 100).returning('id')).length, 500)
    })
    await test('knex: savepoints', async () => {
        await second.transaction(async outer => {
            await outer('people').where('full_name', 'person 1').update({ visits: 1 })
            await assert.rejects(outer.transaction(async inner => {
                await inner('people').where('full_name', 'person 1').update({ visits: 2 })
                await inner('people').insert({ full_name: 'Ada' })
            }), { code: '23505' })
            await outer('people').where('full_name', 'person 2').increment('visits', 3)
        }, { isolationLevel: 'repeatable read' })
        const rows = await second('people').whereIn('full_name', ['person 1', 'person 2']).orderBy('full_name')
        assert.deepEqual(rows.map(row => row.visits), ['1', '3'])
    })
    await test('knex: locks', async () => {
        await first.transaction(async outer => {
            const [row] = await outer('people').where('full_name', 'person 3').forUpdate()
            const skipped = await first.transaction(inner =>
                inner('people').where('id', row.id).forUpdate().skipLocked())
            assert.equal(skipped.length, 0)
        })
    })
    await test('knex: join table without a key', async () => {
        const [note] = await last('notes').select()
        await last('notes_of_people').insert([{ person_id: note.person_id, note_id: note.id }, { note_id: note.id }])
        assert.equal(await last('notes_of_people').whereNull('person_id').del(), 1)
        assert.equal(await last('notes_of_people').update({ person_id: null }), 1)
    })
    await test('knex: truncate', () => second('notes').del().then(() => assert.fail('a row is referred to'), error => {
        assert.equal(error.code, '23503')
        return second.raw('truncate notes, notes_of_people')
    }))
    await test('knex: migrate down in the last region', async () => {
        for (let step = 0; step < 3; step++) await last.migrate.down()
        assert.equal((await last.migrate.list())[0].length, 0)
    })
    await test('knex: migrate up one by one in two regions', async () => {
        await first.migrate.up()
        await everywhere()
        assert.equal((await second.migrate.latest())[1].length, 2)
    })
    await test('knex: roll everything back', async () => {
        await first.migrate.rollback(undefined, true)
        await first.schema.dropTable('knex_migrations').dropTable('knex_migrations_lock')
    })
    await Promise.all(dbs.map(db => db.destroy()))
}
