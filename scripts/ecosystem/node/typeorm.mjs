// TypeORM: entities that are synchronized, and nothing left to synchronize in another region; migrations, locks.

import 'reflect-metadata'
import assert from 'node:assert/strict'
import typeorm from 'typeorm'
import { connection, regions, test } from './results.mjs'

const { DataSource, EntitySchema, Table, TableColumn, TableForeignKey, TableIndex } = typeorm

const Person = new EntitySchema({
    name: 'person', schema: 'orm',
    columns: {
        id: { type: 'uuid', primary: true, generated: 'uuid' },
        number: { type: 'int', generated: 'increment' },
        name: { type: 'varchar', length: 100, unique: true },
        mood: { type: 'enum', enum: ['good', 'bad'], default: 'good' },
        tags: { type: 'text', array: true, default: '{}' },
        settings: { type: 'jsonb', nullable: true },
        born: { type: 'timestamptz', createDate: true },
        version: { type: 'int', version: true },
        gone: { type: 'timestamptz', deleteDate: true, nullable: true },
    },
    checks: [{ name: 'named', expression: 'length("name") > 0' }],
    indices: [{ name: 'person_mood', columns: ['mood'], where: `"mood" = 'bad'` }],
    relations: { projects: { type: 'many-to-many', target: 'project', joinTable: true, cascade: true } },
})
const Project = new EntitySchema({
    name: 'project', schema: 'orm',
    columns: { id: { type: 'bigint', primary: true, generated: 'identity' }, title: { type: 'text' }, cost: { type: 'numeric', precision: 10, scale: 2, default: 0 } },
})
const Place = new EntitySchema({
    name: 'place', schema: 'orm',
    columns: { id: { type: 'int', primary: true, generated: true }, name: { type: 'text' } },
    relations: {
        parent: { type: 'many-to-one', target: 'place', inverseSide: 'children', nullable: true, onDelete: 'CASCADE' },
        children: { type: 'one-to-many', target: 'place', inverseSide: 'parent', cascade: true },
    },
})

class First1700000000001 {
    name = 'First1700000000001'
    async up(runner) {
        await runner.createTable(new Table({
            name: 'orm.invoice',
            columns: [{ name: 'id', type: 'serial', isPrimary: true }, { name: 'project', type: 'bigint', isNullable: true }, { name: 'text', type: 'varchar' }],
        }))
        await runner.createForeignKey('orm.invoice', new TableForeignKey({
            columnNames: ['project'], referencedTableName: 'orm.project', referencedColumnNames: ['id'], onDelete: 'SET NULL',
        }))
    }
    async down(runner) {
        await runner.dropTable('orm.invoice')
    }
}
class Second1700000000002 {
    name = 'Second1700000000002'
    async up(runner) {
        await runner.addColumn('orm.invoice', new TableColumn({ name: 'paid', type: 'boolean', default: false }))
        await runner.changeColumn('orm.invoice', 'text', new TableColumn({ name: 'body', type: 'text', isNullable: true }))
        await runner.createIndex('orm.invoice', new TableIndex({ name: 'unpaid', columnNames: ['paid'], where: 'not paid' }))
        await runner.query("insert into orm.invoice (body) select 'i' || g from generate_series(1, 50) g")
    }
    async down(runner) {
        await runner.dropIndex('orm.invoice', 'unpaid')
        await runner.dropColumn('orm.invoice', 'paid')
    }
}

const source = (port, more) => new DataSource({
    type: 'postgres', ...connection(port), username: 'postgres', schema: 'orm', entities: [Person, Project, Place],
    migrations: [First1700000000001, Second1700000000002], ...more,
})

export async function run() {
    const sources = regions.map(port => source(port))
    const [first, second, last] = sources
    await test('typeorm: synchronize', async () => {
        await first.initialize()
        await first.query('create schema orm')
        await first.synchronize()
    })
    await test('typeorm: nothing to synchronize elsewhere', async () => {
        for (const other of [second, last]) {
            await other.initialize()
            const { upQueries } = await other.driver.createSchemaBuilder().log()
            assert.deepEqual(upQueries.map(query => query.query), [])
        }
    })
    await test('typeorm: save with relations', async () => {
        const people = second.getRepository('person')
        await people.save({ name: 'Ada', settings: { a: 1 }, tags: ['x'], projects: [{ title: 'engine' }, { title: 'notes' }] })
        const ada = await people.findOne({ where: { name: 'Ada' }, relations: { projects: true } })
        assert.equal(ada.projects.length, 2)
        ada.projects.pop()
        await people.save(ada)
    })
    await test('typeorm: upsert and soft delete', async () => {
        const people = last.getRepository('person')
        await people.upsert([{ name: 'Ada', mood: 'bad' }, { name: 'Bob' }], ['name'])
        await people.softDelete({ name: 'Bob' })
        assert.equal(await people.countBy({ name: 'Bob' }), 0)
        await people.restore({ name: 'Bob' })
        assert.equal(await people.countBy({ name: 'Bob' }), 1)
    })
    await test('typeorm: rows that refer to their table', async () => {
        const places = first.getRepository('place')
        const root = await places.save({ name: 'root', children: [{ name: 'child', children: [{ name: 'grandchild' }] }] })
        await places.delete(root.id)
        assert.equal(await places.count(), 0)
    })
    await test('typeorm: locks and isolation', async () => {
        for (const level of ['READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE']) {
            await second.transaction(level, async manager => {
                const bob = await manager.findOne('person', { where: { name: 'Bob' }, lock: { mode: 'pessimistic_write' } })
                await manager.update('person', { id: bob.id }, { settings: { level } })
                await manager.transaction(inner => inner.increment('person', { id: bob.id }, 'version', 1))
            })
        }
    })
    await test('typeorm: query builder', async () => {
        await last.createQueryBuilder().insert().into('project').values(Array.from({ length: 100 }, (_, n) => ({ title: `p${n}` }))).execute()
        const changed = await last.createQueryBuilder().update('project').set({ cost: () => 'cost + 1.5' }).where('id % 2 = 0').returning('*').execute()
        assert.ok(changed.affected > 0)
        await last.createQueryBuilder().delete().from('project').where("title like 'p9%'").execute()
    })
    await test('typeorm: migrations', async () => assert.equal((await first.runMigrations({ transaction: 'each' })).length, 2))
    await test('typeorm: no migration elsewhere', async () => {
        assert.equal(await last.showMigrations(), false)
        assert.equal((await last.runMigrations()).length, 0)
    })
    await test('typeorm: revert in another region', async () => {
        await second.undoLastMigration()
        await second.undoLastMigration()
    })
    await test('typeorm: drop the schema', async () => {
        await last.dropDatabase()
        await last.query('drop schema if exists orm cascade')
    })
    await Promise.all(sources.map(each => each.isInitialized && each.destroy()))
}
