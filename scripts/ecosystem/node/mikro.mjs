// MikroORM: a schema that is created from entities, and found unchanged in another region; units of work.

import assert from 'node:assert/strict'
import { EntitySchema, LockMode, MikroORM } from '@mikro-orm/postgresql'
import { connection, regions, test } from './results.mjs'

const Author = new EntitySchema({
    name: 'Author',
    properties: {
        id: { primary: true, type: 'number', autoincrement: true },
        email: { type: 'string', unique: true },
        mood: { enum: true, items: ['good', 'bad'], default: 'good' },
        tags: { type: 'array', nullable: true },
        version: { type: 'number', version: true },
        books: { kind: '1:m', entity: 'Book', mappedBy: 'author', orphanRemoval: true },
    },
})
const Book = new EntitySchema({
    name: 'Book',
    properties: {
        id: { primary: true, type: 'uuid', defaultRaw: 'gen_random_uuid()' },
        title: { type: 'text' },
        price: { type: 'decimal', precision: 10, scale: 2, nullable: true, check: 'price > 0' },
        author: { kind: 'm:1', entity: 'Author', deleteRule: 'cascade' },
        kinds: { kind: 'm:n', entity: 'Kind', owner: true },
    },
    indexes: [{ properties: ['title'] }],
})
const Kind = new EntitySchema({ name: 'Kind', properties: { code: { primary: true, type: 'string' }, meta: { type: 'json', nullable: true } } })

export async function run() {
    const orms = await Promise.all(regions.map(port => {
        const { database: dbName, ...where } = connection(port)
        return MikroORM.init({ entities: [Author, Book, Kind], dbName, ...where, debug: false, ensureDatabase: false,
            schemaGenerator: { ignoreSchema: ['onetrip'] } })
    }))
    const [first, second, last] = orms
    await test('mikro-orm: create the schema', () => first.schema.createSchema())
    await test('mikro-orm: nothing to update elsewhere', async () => assert.equal((await last.schema.getUpdateSchemaSQL()).trim(), ''))
    await test('mikro-orm: a unit of work', async () => {
        const em = second.em.fork()
        const author = em.create('Author', { email: 'ada@example.org', tags: ['x'] })
        em.create('Book', { title: 'engine', price: '12.50', author, kinds: [em.create('Kind', { code: 'tech', meta: { a: 1 } })] })
        em.create('Book', { title: 'notes', author })
        await em.flush()
        assert.equal(await second.em.fork().count('Book'), 2)
    })
    await test('mikro-orm: changes and orphans', async () => {
        const em = last.em.fork()
        const author = await em.findOneOrFail('Author', { email: 'ada@example.org' }, { populate: ['books', 'books.kinds'] })
        author.mood = 'bad'
        author.books.remove(author.books.getItems().find(book => book.title === 'notes'))
        await em.flush()
        assert.equal(await last.em.fork().count('Book'), 1)
    })
    await test('mikro-orm: locks', async () => {
        await first.em.fork().transactional(async em => {
            const author = await em.findOneOrFail('Author', { email: 'ada@example.org' }, { lockMode: LockMode.PESSIMISTIC_WRITE })
            author.tags = ['y']
            await em.transactional(async inner => inner.insert('Kind', { code: 'other' }))
        })
    })
    await test('mikro-orm: versions', async () => {
        const ems = [second.em.fork(), second.em.fork()]
        const [one, other] = await Promise.all(ems.map(em => em.findOneOrFail('Author', { email: 'ada@example.org' })))
        one.tags = ['one']
        await ems[0].flush()
        other.tags = ['other']
        await assert.rejects(ems[1].flush(), { name: 'OptimisticLockError' })
    })
    await test('mikro-orm: upsert many', async () => {
        const em = second.em.fork()
        await em.upsertMany('Kind', [{ code: 'tech', meta: { b: 2 } }, { code: 'new' }])
        assert.equal(await em.count('Kind'), 3)
    })
    await test('mikro-orm: drop the schema', () => last.schema.dropSchema())
    await Promise.all(orms.map(orm => orm.close(true)))
}
