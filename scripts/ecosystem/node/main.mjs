// Programs in JavaScript that were written for PostgreSQL: what they do in one region must be there in the others.

for (const name of ['drivers', 'knex', 'sequelize', 'typeorm', 'mikro', 'queues']) {
    const { run } = await import(`./${name}.mjs`)
    await run()
}
process.exit(0)
