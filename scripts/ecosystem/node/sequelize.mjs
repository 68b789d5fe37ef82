// Sequelize: models that are created, created again, and altered to fit; associations, hooks of transactions, retries of locks.

import assert from 'node:assert/strict'
import { DataTypes, Op, Sequelize, Transaction } from 'sequelize'
import { database, regions, test } from './results.mjs'

function connect(port, more = {}) {
    const db = new Sequelize(database, 'postgres', '', { host: '127.0.0.1', port, dialect: 'postgres', logging: false })
    const Person = db.define('Person', {
        name: { type: DataTypes.STRING, unique: true, allowNull: false },
        mood: { type: DataTypes.ENUM('good', 'bad', ...(more.moods ?? [])), defaultValue: 'good' },
        settings: DataTypes.JSONB,
        tags: DataTypes.ARRAY(DataTypes.STRING),
        during: DataTypes.RANGE(DataTypes.DATEONLY),
        visits: { type: DataTypes.BIGINT, defaultValue: 0 },
        ...(more.person ?? {}),
    }, { version: true, paranoid: true, indexes: [{ using: 'gin', fields: ['settings'] }, { fields: ['mood'] }] })
    const Project = db.define('Project', { id: { type: DataTypes.UUID, defaultValue: DataTypes.UUIDV4, primaryKey: true }, title: DataTypes.TEXT })
    const Task = db.define('Task', { text: DataTypes.STRING(50), due: DataTypes.DATE, hours: DataTypes.DECIMAL(8, 2) })
    Person.belongsToMany(Project, { through: 'Members' })
    Project.belongsToMany(Person, { through: 'Members' })
    Project.hasMany(Task, { onDelete: 'CASCADE' })
    Task.belongsTo(Project)
    return { db, Person, Project, Task }
}

export async function run() {
    const [first, second, last] = regions.map(port => connect(port))
    await test('sequelize: sync', () => first.db.sync({ force: true }))
    await test('sequelize: sync again in another region', () => second.db.sync())
    await test('sequelize: sync by altering in the last region', () => last.db.sync({ alter: true }))
    await test('sequelize: a new column and a new value', async () => {
        const altered = connect(regions[1], { moods: ['so so'], person: { nickname: { type: DataTypes.STRING, defaultValue: 'none' } } })
        await altered.db.sync({ alter: true })
        await altered.Person.create({ name: 'New', mood: 'so so' })
        await altered.db.close()
    })
    await test('sequelize: associations', async () => {
        const ada = await second.Person.create({ name: 'Ada', settings: { a: 1 }, tags: ['x'], during: ['2026-01-01', '2026-02-01'] })
        const project = await ada.createProject({ title: 'engine' })
        await project.createTask({ text: 'cards', hours: '1.50' })
        await project.createTask({ text: 'notes', due: new Date(0) })
        const found = await second.Person.findOne({ where: { name: 'Ada' }, include: { model: second.Project, include: second.Task } })
        assert.equal(found.Projects[0].Tasks.length, 2)
    })
    await test('sequelize: find or create', async () => {
        const [, created] = await last.Person.findOrCreate({ where: { name: 'Bob' }, defaults: { tags: ['b'] } })
        const [, again] = await last.Person.findOrCreate({ where: { name: 'Bob' } })
        assert.deepEqual([created, again], [true, false])
    })
    await test('sequelize: upsert', async () => {
        await first.Person.upsert({ name: 'Bob', visits: 7 }, { conflictFields: ['name'] })
        await first.Person.bulkCreate([{ name: 'Bob', visits: 8 }, { name: 'Eve' }], { updateOnDuplicate: ['visits'], conflictAttributes: ['name'] })
        assert.equal((await first.Person.findOne({ where: { name: 'Bob' } })).visits, '8')
    })
    await test('sequelize: versions', async () => {
        const [one, other] = await Promise.all([1, 2].map(() => second.Person.findOne({ where: { name: 'Eve' } })))
        await one.update({ visits: 1 })
        await assert.rejects(other.update({ visits: 2 }), { name: 'SequelizeOptimisticLockError' })
    })
    await test('sequelize: paranoid', async () => {
        await last.Person.destroy({ where: { name: 'Eve' } })
        assert.equal(await last.Person.count({ where: { name: 'Eve' } }), 0)
        await last.Person.restore({ where: { name: 'Eve' } })
        assert.equal(await last.Person.count({ where: { name: 'Eve' } }), 1)
    })
    await test('sequelize: transactions', async () => {
        for (const isolationLevel of Object.values(Transaction.ISOLATION_LEVELS)) {
            await first.db.transaction({ isolationLevel }, async transaction => {
                const bob = await first.Person.findOne({ where: { name: 'Bob' }, transaction, lock: transaction.LOCK.UPDATE })
                await bob.increment('visits', { transaction })
                await first.db.transaction({ transaction }, inner =>
                    first.Person.create({ name: `inner ${isolationLevel}` }, { transaction: inner }))
            })
        }
        assert.equal(await first.Person.count({ where: { name: { [Op.like]: 'inner%' } } }), 4)
    })
    await test('sequelize: foreign keys', async () => {
        const project = await second.Project.findOne({ where: { title: 'engine' } })
        await project.destroy()
        assert.equal(await second.Task.count(), 0)
        assert.equal(await second.db.models.Members.count(), 0)
    })
    await test('sequelize: what it finds in the catalogs', async () => {
        const tables = ['People', 'Projects', 'Tasks', 'Members']
        const of = async ({ db }) => JSON.stringify(await Promise.all(tables.flatMap(table => [
            db.getQueryInterface().describeTable(table),
            db.getQueryInterface().showIndex(table),
            db.getQueryInterface().getForeignKeyReferencesForTable(table),
        ])), (key, value) => (typeof value === 'object' && value && !Array.isArray(value)
            ? Object.fromEntries(Object.entries(value).filter(([name]) => name !== 'indexes').sort()) : value))
        assert.equal(await of(first), await of(last))
    })
    await test('sequelize: query interface', async () => {
        const queries = last.db.getQueryInterface()
        await queries.createTable('odd', { id: { type: DataTypes.INTEGER, primaryKey: true, autoIncrement: true }, a: DataTypes.INTEGER })
        await queries.addColumn('odd', 'b', { type: DataTypes.ENUM('x', 'y') })
        await queries.changeColumn('odd', 'a', { type: DataTypes.BIGINT, allowNull: false, defaultValue: 3 })
        await queries.renameColumn('odd', 'a', 'aa')
        await queries.addConstraint('odd', { fields: ['aa'], type: 'check', where: { aa: { [Op.gt]: 0 } }, name: 'odd_check' })
        await queries.addIndex('odd', ['b'], { unique: true, concurrently: true })
        await queries.bulkInsert('odd', [{ b: 'x', aa: 3 }, { b: 'y', aa: 4 }])
        await queries.removeColumn('odd', 'b')
        await queries.dropTable('odd')
        // It leaves the type of a column that was removed.
        await last.db.query('drop type "enum_odd_b"')
    })
    await test('sequelize: truncate and drop', async () => {
        await second.Person.truncate({ cascade: true, restartIdentity: true })
        await second.db.drop({})
    })
    await Promise.all([first, second, last].map(({ db }) => db.close()))
}
