// What the programs here share: where the database is, and a line for each test in ECOSYSTEM_RESULTS.  On a plain server the
// regions are the same server three times.

import assert from 'node:assert/strict'
import { appendFileSync } from 'node:fs'
import pg from 'pg'

const ports = process.env.ECOSYSTEM_PORTS.split(' ').map(Number)
export const database = process.env.ECOSYSTEM_DATABASE
export const regions = [0, 1, 2].map(at => ports[at % ports.length])
export const connection = port => ({ host: '127.0.0.1', port, user: 'postgres', database })
export const url = port => `postgres://postgres@127.0.0.1:${port}/${database}`

export async function sql(port, text, values) {
    const client = new pg.Client(connection(port))
    await client.connect()
    try {
        return (await client.query(text, values)).rows
    } finally {
        await client.end()
    }
}

// Waits until all regions show what any of them shows now.
export async function everywhere() {
    if (ports.length === 1) return
    let goal = 0n
    for (const port of ports) {
        const position = BigInt((await sql(port, 'select onetrip.position() as at'))[0].at)
        if (position > goal) goal = position
    }
    for (const port of ports) {
        for (let tries = 0; ; tries++) {
            if (BigInt((await sql(port, 'select onetrip.position() as at'))[0].at) >= goal) break
            assert.ok(tries < 3000, `the region at ${port} does not reach ${goal}`)
            await new Promise(resolve => setTimeout(resolve, 10))
        }
    }
}

const LIMIT_S = 120

export async function test(name, work) {
    let outcome = 'ok'
    let said = ''
    let timer
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no end within ${LIMIT_S} s`)), LIMIT_S * 1000)
    })
    try {
        await Promise.race([work(), late])
        await everywhere()
    } catch (error) {
        outcome = 'failed'
        said = String(error.message ?? error).replace(/\s+/g, ' ').slice(0, 300)
        console.error(`---- ${name}\n`, error)
    }
    clearTimeout(timer)
    console.log(`${name}: ${outcome}`)
    appendFileSync(process.env.ECOSYSTEM_RESULTS, `${name}\t${outcome}\t${said}\n`)
}
