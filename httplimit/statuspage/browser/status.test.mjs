// The status page in a real browser, while a server is under load: `./run.sh` beside this file starts both.
import assert from 'node:assert/strict'
import { mkdirSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { HtmlValidate } from 'html-validate'
import { chromium } from 'playwright-core'

const base = process.env.SERVER // http://127.0.0.1:port, for clients
const operators = process.env.OPERATORS // the same, with the limiter's page at /status
const shots = new URL('shots/', import.meta.url).pathname
mkdirSync(shots, { recursive: true })

let browser
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--host-resolver-rules=MAP status.example 127.0.0.1'],
  })
  await lockOut()
})
after(() => browser?.close())

const login = (password = 'guess', user = 'ada') =>
  fetch(base + '/login', { method: 'POST', body: new URLSearchParams({ user, password }) })

// lockOut fails to log in, until this address is locked out.
let guests = 0
const lockOut = async () => {
  const user = `guest${guests++}`
  while ((await login('guess', user)).status !== 429);
}

// open shows the page, and fails if it asks another host for anything, or complains.
async function open (options, path = '/status', site = operators) {
  const context = await browser.newContext(options)
  const plain = site.startsWith('http://status.example') // Chromium warns here that COOP needs HTTPS
  const page = await context.newPage()
  const wrong = []
  page.on('request', r => { if (!r.url().startsWith(site) && !r.url().startsWith('data:')) wrong.push(r.url()) })
  page.on('pageerror', e => wrong.push(String(e)))
  page.on('console', m => {
    if (['error', 'warning'].includes(m.type()) && !(plain && /Opener-Policy header has been ignored/.test(m.text()))) wrong.push(m.text())
  })
  const response = await page.goto(site + path)
  const close = async () => {
    await context.close()
    assert.deepEqual(wrong, [])
  }
  return { context, page, response, close }
}

const json = async () => (await fetch(operators + '/status?format=json')).json()

const quiet = '/status?refresh=0'
const limit = (page, name) => page.locator('.limit', { has: page.getByRole('heading', { name }) })
const pages = {
  overview: () => quiet,
  search: () => '/status?id=127.0.0.1',
  nothing: () => '/status?id=',
}

for (const width of [1200, 390, 320]) {
  for (const colorScheme of ['light', 'dark']) {
    for (const [name, path] of Object.entries(pages)) {
      test(`${name}, ${width} pixels wide, ${colorScheme}: it fits, and can be read, without script`, async () => {
        const { page, response, close } = await open({
          viewport: { width, height: 900 }, colorScheme, javaScriptEnabled: false,
        }, await path())
        assert.equal(response.status(), 200)
        await page.screenshot({ path: `${shots}${name}-${width}-${colorScheme}.png`, fullPage: true })
        const { scroll, cut, low, empty } = await page.evaluate(looks)
        assert.equal(scroll, 0, 'it scrolls sideways')
        assert.deepEqual(cut, [], 'cut off')
        assert.deepEqual(low, [], 'too little contrast')
        assert.equal(empty, 0, 'the last row of tiles is not full')
        await close()
      })
    }
  }
}

// looks runs in the page. It returns how far the page scrolls sideways, which texts are cut off or have too little
// contrast, and how many pixels the last row of tiles leaves empty.
function looks () {
  const luminance = css => {
    const [r, g, b] = css.match(/[\d.]+/g).map(Number).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor
      if (!/, 0\)$/.test(c)) return c
    }
    return 'rgb(255, 255, 255)'
  }
  const cut = []
  const low = []
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
    if (!text || e.closest('svg') || e.hidden) continue
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline') cut.push(e.textContent)
    const [hi, lo] = [luminance(getComputedStyle(e).color), luminance(ground(e))].sort((a, b) => b - a)
    if ((hi + 0.05) / (lo + 0.05) < 4.5) low.push(`${e.textContent}: ${((hi + 0.05) / (lo + 0.05)).toFixed(2)}`)
  }
  const right = e => e?.getBoundingClientRect().right ?? 0
  const empty = Math.max(0, right(document.querySelector('.totals')) - right(document.querySelector('.totals > :last-child')) - 2)
  return { empty, scroll: document.documentElement.scrollWidth - innerWidth, cut, low }
}

test('shows what happens', async () => {
  while (!(await json()).limits[0].denied_history.some(v => v > 0)) await setTimeout(500) // a slot of the chart is over
  const { page, close } = await open({}, '/status?refresh=0')
  const api = limit(page, 'RequestsPerAddress')
  const logins = limit(page, 'LoginsPerAddress')
  assert.match(await limit(page, 'Held').textContent(), /127\.0\.0\.1 LoginsPerAddress20.* UTC in [45]m?/)
  assert.match(await api.textContent(), /100\/1s/)
  assert.match(await api.locator('svg.chart path.fa').getAttribute('d'), /^M\d+/)
  assert.match(await api.locator('svg.chart path.fd').getAttribute('d'), /^M\d+/)
  assert.match(await logins.getByRole('table', { name: 'Most denied' }).textContent(), /127\.0\.0\.1/)
  assert.match(await page.locator('header').textContent(), /All is well/)
  await close()
})

test('reloads, until it is paused', async () => {
  const { page, close } = await open({})
  const first = await page.locator('time').getAttribute('datetime')
  await page.waitForFunction(t => document.querySelector('time')?.getAttribute('datetime') !== t, first, { timeout: 20_000 })
  await page.getByRole('link', { name: 'pause' }).click()
  await page.waitForURL(/refresh=0/)
  assert.equal((await page.reload()).headers().refresh, undefined)
  await page.getByRole('link', { name: 'resume' }).click()
  await page.waitForURL(/\?$/)
  assert.equal((await page.reload()).headers().refresh, '5')
  await close()
})

test('searches by keyboard and without script, and offers nothing that changes a bucket', async () => {
  await lockOut()
  const { page, close } = await open({ javaScriptEnabled: false }, quiet)
  await page.getByRole('searchbox').fill('127.0.0.1')
  await page.keyboard.press('Enter')
  await page.waitForURL(/\?id=127\.0\.0\.1$/)
  await validate('search', await (await fetch(page.url())).text())
  assert.match(await limit(page, 'LoginsPerAddress').textContent(), /Held until 20/)
  assert.equal(await page.getByRole('button').count(), 1, 'Search')
  assert.equal(await page.locator('form').count(), 1)
  await page.getByRole('link', { name: 'all limits' }).focus()
  await page.keyboard.press('Enter')
  await page.waitForURL(/\?$/)
  const post = await fetch(operators + '/status', { method: 'POST', body: new URLSearchParams({ reset: '127.0.0.1' }) })
  assert.equal(post.status, 405)
  assert.equal((await login('lovelace')).status, 429)
  await close()
})

test('cannot be framed by another page', async () => {
  const { context, page } = await open({}, '/nothing')
  await page.setContent(`<iframe src="${operators}/status"></iframe>`)
  await page.waitForLoadState('networkidle')
  assert.equal(await page.frames()[1].locator('.limit').count(), 0)
  await context.close()
})

test('is valid HTML', async () => {
  await validate('status', await (await fetch(operators + '/status')).text())
  await validate('denied', await (await denied()).text())
})

async function validate (name, html) {
  const validator = new HtmlValidate({ extends: ['html-validate:standard', 'html-validate:a11y'] })
  assert.match(html, /^<!doctype html>/, name)
  const report = await validator.validateString(html)
  assert.deepEqual(report.results.flatMap(r => r.messages.map(m => `${name}:${m.line}: ${m.ruleId}: ${m.message}`)), [])
}

// denied asks until it gets the page that browsers get when they are denied.
async function denied () {
  for (;;) {
    const response = await fetch(base + '/api/time', { headers: { accept: 'text/html' } })
    if (response.status === 429) return response
    await response.arrayBuffer()
  }
}
