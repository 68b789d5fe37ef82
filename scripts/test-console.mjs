// What scripts/test-console.sh checks in the browser: every picture is looked at in two widths and two colour schemes.
//
//   node test-console.mjs ADDRESS NODES_FOLDER REGION_TO_KILL [FOLDER_FOR_SCREENSHOTS]

import { spawn, spawnSync } from 'node:child_process';
import { chownSync, mkdirSync, openSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { chromium } from 'playwright-core';

const [address, nodes, victim, pictures] = process.argv.slice(2);
const REGIONS = ['us-east-1', 'us-east-2', 'us-west-2'];
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
let failures = 0;

function check(name, holds, detail = '') {
  console.log(`test ${name}: ${holds ? 'ok' : `FAILED ${typeof detail === 'string' ? detail : JSON.stringify(detail)}`}`);
  if (!holds) failures += 1;
}
/** Waits for an element, also across pages. */
const appears = (page, selector, seconds) => page.waitForSelector(selector, { timeout: 1000 * seconds }).then(() => true, () => false);
/** Waits until `look` says something true, and returns it; after `seconds`, whatever it says then. */
async function until(seconds, look) {
  const end = Date.now() + 1000 * seconds;
  for (;;) {
    const seen = await look();
    if (seen || Date.now() > end) return seen;
    await sleep(200);
  }
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const views = [];
for (const width of [1280, 390]) {
  for (const colorScheme of ['light', 'dark']) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme, deviceScaleFactor: 1 });
    const view = { name: `${width}_${colorScheme}`, width, page, complaints: [] };
    page.on('console', (message) => ['error', 'warning'].includes(message.type()) && view.complaints.push(message.text()));
    page.on('pageerror', (error) => view.complaints.push(String(error)));
    page.on('dialog', (dialog) => { view.complaints.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
    page.on('request', (request) => request.url().startsWith(address) || view.complaints.push(`asked ${request.url()}`));
    await page.goto(address);
    views.push(view);
  }
}
const text = (page, selector) => page.textContent(selector);
const rate = async (page) => Number((await text(page, '#commits-now')).replace(/[^\d.]/g, ''));

// ---- all is well ----

for (const { name, page } of views) {
  const shown = await until(30, () => page.$$eval('#map [data-region]', (all) => all.length === 3 && all.map((e) => e.dataset.region)));
  check(`${name}_shows_the_regions`, JSON.stringify(shown) === JSON.stringify(REGIONS), shown);
  const leader = await text(page, '#leader-name');
  check(`${name}_shows_the_leader_and_why`, REGIONS.includes(leader) && (await text(page, '#leader-why')).includes('COMMIT takes'), leader);
  const trips = await until(20, async () => {
    const labels = await page.$$eval('#map .way-label text', (all) => all.map((e) => parseFloat(e.textContent)).sort((a, b) => a - b));
    const like = [10, 50, 62].every((ms, i) => labels[i] >= ms && labels[i] < ms + 8);
    return like && labels;
  });
  check(`${name}_shows_the_round_trips`, trips, await page.$$eval('#map .way-label text', (all) => all.map((e) => e.textContent)));
  check(`${name}_shows_commits`, await until(20, async () => (await rate(page)) > 30), await text(page, '#commits-now'));
  const seen = new Set();
  await until(20, async () => seen.add(await text(page, '#commits-legend')).size > 3);
  check(`${name}_is_live`, seen.size > 3, [...seen]);
  check(`${name}_shows_what_is_sent`, await until(10, () => page.$$eval('#map .sent', (all) => all.length >= 3)));
  const latency = await until(20, async () => {
    const rows = await page.$$eval('#latency-chart .row', (all) => all.map((e) => e.textContent));
    return rows.length === 3 && rows.every((row) => /× the limit/.test(row)) && rows;
  });
  check(`${name}_compares_commits_with_the_limit`, latency, await text(page, '#latency-chart'));
  check(`${name}_says_that_all_is_well`, await until(20, async () => (await text(page, '#state')) === 'all is well'),
    await text(page, '#problem-list'));
}
{
  const { page } = views[0];
  const lost = await until(60, () => page.$$eval('#conflict-tables .row', (rows) => rows.some((row) => row.textContent.includes('account'))));
  check('conflicts_are_shown_by_table', lost, await text(page, '#conflict-tables'));
  await page.click('#losers-box summary');
  const named = await until(20, async () => (await text(page, '#losers')).includes('<img src=x onerror=alert(1)>'));
  check('a_hostile_name_is_shown_as_text', named && !(await page.$('#losers img')), await text(page, '#losers'));
  await page.click('#losers-box summary');
}

// ---- the page itself ----

for (const { name, width, page } of views) {
  const over = await page.evaluate(() => {
    const wide = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.unseen'));
    return { page: document.documentElement.scrollWidth, wide: wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 80)) };
  });
  check(`${name}_is_not_wider_than_the_window`, over.page <= width && over.wide.length === 0, over);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run());
  const serious = found.violations.filter((v) => ['serious', 'critical'].includes(v.impact));
  check(`${name}_axe_finds_nothing_serious`, serious.length === 0 && found.passes.length > 20,
    serious.map((v) => [v.id, v.nodes.slice(0, 2).map((n) => n.failureSummary + n.html)]));
  check(`${name}_has_landmarks`, await page.evaluate(() => ['header', 'main', 'footer', 'h1'].every((e) => document.querySelectorAll(e).length === 1)));
  check(`${name}_charts_have_words`, await page.evaluate(() => [...document.querySelectorAll('main svg')].every((svg) =>
    svg.getAttribute('aria-hidden') === 'true' || (svg.getAttribute('role') === 'img' && (svg.hasAttribute('aria-label') || svg.hasAttribute('aria-labelledby'))))));
}
{
  const { page } = views[0];
  await page.evaluate(() => document.activeElement?.blur());
  const reached = [];
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press('Tab');
    reached.push(await page.evaluate(() => {
      const e = document.activeElement;
      const ring = getComputedStyle(e);
      return [e.id || e.className || e.tagName, e === document.body || parseFloat(ring.outlineWidth) >= 2 && ring.outlineStyle !== 'none'];
    }));
  }
  const ids = reached.map(([id]) => id);
  check('the_keyboard_reaches_everything', ['skip', 'pause', 'theme', 'SUMMARY'].every((id) => ids.includes(id)), ids);
  check('focus_can_be_seen', reached.every(([, ring]) => ring), reached);
  await page.focus('#theme');
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const before = await ground();
  await page.keyboard.press('Enter');
  const after = await ground();
  await page.reload();
  check('the_colours_can_be_chosen_and_stay', before !== after && (await ground()) === after, [before, after]);
  await page.click('#theme');
  await until(20, async () => (await rate(page)) > 0);
  await page.focus('#pause');
  await page.keyboard.press('Space');
  await sleep(1500);
  const still = await text(page, '#commits-chart');
  const drawn = await page.innerHTML('#commits-chart');
  await sleep(2500);
  check('pause_stops_it', still === (await text(page, '#commits-chart')) && drawn === (await page.innerHTML('#commits-chart')));
  await page.keyboard.press('Space');
  check('and_it_goes_on', await until(10, async () => drawn !== (await page.innerHTML('#commits-chart'))));
}
{
  const page = await browser.newPage({ reducedMotion: 'reduce' });
  await page.goto(address);
  const moves = await until(20, () => page.$eval('#map .sent', (e) => getComputedStyle(e).animationName).catch(() => null));
  check('nothing_moves_for_those_who_want_that', moves === 'none', moves);
  await page.close();
}

// Charts that have something to show.
if (pictures) {
  mkdirSync(pictures, { recursive: true });
  await sleep(Number(process.env.FILL_S ?? 60) * 1000);
  for (const { width, name, page } of views) {
    await page.evaluate(() => { document.activeElement?.blur(); scrollTo(0, 0); });
    await page.mouse.move(0, 600);
    await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: width === 1280 });
  }
}

// ---- a region dies, and comes back ----

const folder = `${nodes}/${victim}`;
const first = (file) => Number(readFileSync(`${folder}/${file}`, 'utf8').split('\n')[0]);
const killed = Date.now();
for (const pid of [first('node.pid'), first('postgres/postmaster.pid')]) process.kill(pid, 'SIGKILL');
for (const { name, page } of views) {
  const problem = await until(20, async () => {
    const list = (await page.isVisible('#problems')) && (await text(page, '#problem-list'));
    return list && list.includes(victim) && list;
  });
  check(`${name}_shows_what_is_wrong_and_what_to_do`, problem && /not connected/.test(problem) && /onetrip token --replaces/.test(problem), problem);
  check(`${name}_shows_it_on_the_map`, await until(10, () => page.$(`#map .away[data-region="${victim}"]`)));
  check(`${name}_says_it_to_screen_readers`, (await text(page, '#announce')).includes(victim) && (await page.getAttribute('#announce', 'aria-live')) === 'polite',
    await text(page, '#announce'));
  check(`${name}_shows_that_others_go_on`, await until(20, async () => (await rate(page)) > 20), await text(page, '#commits-now'));
}
check('within_seconds', Date.now() - killed < 20_000, `${Date.now() - killed} ms`);
for (const { name, width, page, complaints } of views) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run());
  const serious = found.violations.filter((v) => ['serious', 'critical'].includes(v.impact));
  check(`${name}_axe_finds_nothing_serious_then`, serious.length === 0, serious.map((v) => [v.id, v.nodes[0].html]));
  if (pictures) await page.screenshot({ path: `${pictures}/${name}_region_down.png`, fullPage: width === 1280 });
  check(`${name}_has_no_complaints`, complaints.length === 0, complaints);
}
// As long as the node is needed; the demo ends it with the others.
function start(region) {
  const log = openSync(`${nodes}/../../restarted.log`, 'a');
  return spawn(process.env.ONETRIP, ['start', '--data', `${nodes}/${region}`], { stdio: ['ignore', log, log] });
}
const again = start(victim);
check('all_is_well_again', await until(60, async () => (await text(views[0].page, '#state')) === 'all is well'
  && (await text(views[0].page, '#announce')) === 'All is well.'), await text(views[0].page, '#problem-list'));

// ---- a token ----

const TOKEN = '0123456789abcdef0123456789abcdef';
again.kill('SIGTERM');
await new Promise((done) => again.once('exit', done));
writeFileSync(`${folder}/http.token`, `${TOKEN}\n`, { mode: 0o600 });
const { uid, gid } = statSync(`${folder}/node.toml`);
chownSync(`${folder}/http.token`, uid, gid);
const guarded = start(victim);
const http = /^http = "(.*)"$/m.exec(readFileSync(`${folder}/node.toml`, 'utf8'))[1];
const open = () => new Promise((done) => {
  const socket = connect(http.split(':')[1], http.split(':')[0], () => { socket.end(); done(true); });
  socket.on('error', () => done(false));
});
await until(60, open);
const page = await (await browser.newContext()).newPage();
const refused = await page.goto(`http://${http}/`);
check('without_the_token_there_is_a_form', refused.status() === 401 && (await page.isVisible('input#token')));
await page.evaluate(axe);
const form = await page.evaluate(() => axe.run());
check('axe_finds_nothing_serious_in_the_form', form.violations.every((v) => !['serious', 'critical'].includes(v.impact)), form.violations.map((v) => v.id));
await page.fill('input#token', 'wrong');
await page.keyboard.press('Enter');
check('a_wrong_token_is_refused', await page.waitForURL('**/sign-in').then(() => appears(page, 'input#token', 10), () => false), page.url());
await page.fill('input#token', TOKEN);
await page.keyboard.press('Enter');
check('the_token_opens_the_console', await appears(page, `#map [data-region="${victim}"]`, 30), page.url());
const other = await (await browser.newContext()).newPage();
await other.goto(`http://${http}/?token=${TOKEN}`);
check('a_link_with_the_token_opens_it', await appears(other, `#map [data-region="${victim}"]`, 30), other.url());
check('and_the_address_forgets_it', other.url() === `http://${http}/`, other.url());
const cookies = await other.context().cookies();
check('the_cookie_is_for_this_page_alone', cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === 'Strict'
  && !cookies[0].value.includes(TOKEN) && !(await other.evaluate(() => document.cookie)), cookies);
const status = (args, token) => {
  const env = { ...process.env, ...(token && { ONETRIP_HTTP_TOKEN: token }) };
  const said = spawnSync(process.env.ONETRIP, ['status', '--json', ...args], { env, encoding: 'utf8' });
  return JSON.parse(said.stdout).members.some((m) => m.heard === 'now');
};
check('the_command_shows_the_token_in_the_folder', status(['--data', folder]));
check('or_the_one_in_the_environment', status(['--http', http], TOKEN) && !status(['--http', http]) && !status(['--http', http], `${TOKEN}0`));

const gone = new Promise((done) => guarded.once('exit', done));
guarded.kill('SIGKILL');
check('a_page_whose_node_is_gone_says_so', await appears(other, '#stale:not([hidden])', 30) && /has not answered/.test(await text(other, '#stale')),
  await text(other, '#stale'));
await gone;
rmSync(`${folder}/http.token`);

await browser.close();
console.log(failures ? `${failures} failed` : 'all passed');
process.exit(failures ? 1 : 0);
