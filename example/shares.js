'use strict'
// Fair shares: three tenants ask for one limit. The application's limiter decides; this file asks, and draws what
// each tenant gets.
const sharedRate = 50 // tokens a second, as the server has it
const averaged = 2    // seconds that every rate here is an average of
const sharesSpan = 30 // seconds that are drawn
const sharesView = [...crypto.getRandomValues(new Uint8Array(8))].map(b => b.toString(16).padStart(2, '0')).join('')

// A tenant asks as often as its slider says.
class Tenant {
  due = 0
  asks = 0
  weight = 1
  events = []  // { t, sent, got, local } of the last seconds
  samples = [] // { t, asks, gets, fair, local }, for the curves

  constructor(name, index) {
    this.name = name
    this.index = index
    const card = $('tenant').content.cloneNode(true).firstElementChild
    const find = selector => card.querySelector(selector)
    card.id = name
    card.classList.add(`tenant-${index}`)
    card.setAttribute('aria-label', name)
    this.slider = find('[type=range]')
    this.output = find('output')
    this.gets = find('.gets b')
    this.slider.id = find('label').htmlFor = this.output.htmlFor = `${name}-asks`
    find('.name').textContent = name
    this.slider.addEventListener('input', () => { this.moved(); sayShares() })
    for (const radio of card.querySelectorAll('[type=radio]')) {
      radio.name = `${name}-weight`
      radio.addEventListener('change', () => { this.weight = Number(radio.value); sayShares() })
    }
    $('tenants').append(card)
    this.row = $('shares-table').tBodies[0].insertRow()
    const th = document.createElement('th')
    th.scope = 'row'
    th.textContent = name
    this.row.append(th)
    for (let i = 0; i < 4; i++) this.row.insertCell()
    this.moved()
  }

  moved() {
    this.asks = Number(this.slider.value)
    const text = this.asks ? `${this.asks} a second` : 'off'
    this.output.textContent = text
    this.slider.setAttribute('aria-valuetext', text)
    fill(this.slider)
  }

  set(asks) {
    this.slider.value = asks
    this.moved()
  }

  // note keeps what the curves go through.
  note(now, fair) {
    this.events = this.events.filter(e => e.t > now - averaged)
    this.samples = this.samples.filter(s => s.t > now - sharesSpan - 2)
    const rate = kind => this.events.reduce((sum, e) => sum + e[kind], 0) / averaged
    this.now = { t: now, asks: rate('sent'), gets: rate('got'), fair, local: this.events.some(e => e.local) }
    this.samples.push(this.now)
    put(this.gets, this.now.gets.toFixed(1))
    showRates(this.row, this.now)
  }
}
const tenants = ['acme', 'beta', 'core'].map((name, i) => new Tenant(name, i))

// showRates fills a row of the table.
function showRates({ cells }, { asks, gets, fair }) {
  const denied = asks ? `${Math.round(100 * (1 - gets / asks))} %` : '–'
  const texts = [asks.toFixed(), gets.toFixed(1), fair.toFixed(1), denied]
  texts.forEach((text, i) => put(cells[i + 1], text))
}

// fairShares gives each tenant what it asks for, or its part of what the others leave, by weight.
function fairShares() {
  const fair = tenants.map(() => 0)
  let open = tenants.filter(t => t.asks > 0), left = sharedRate
  while (open.length) {
    const part = left / open.reduce((sum, t) => sum + t.weight, 0)
    const content = open.filter(t => t.asks <= part * t.weight)
    for (const t of content.length ? content : open) fair[t.index] = Math.min(t.asks, part * t.weight)
    if (!content.length) break
    left -= content.reduce((sum, t) => sum + t.asks, 0)
    open = open.filter(t => !content.includes(t))
  }
  return fair
}

// Requests are sent as they are due, through both processes in turn. Those that are due meanwhile go together.
let sharing = false, sharedAt = seconds(), sharesVia = 0
async function share() {
  const now = seconds()
  for (const t of tenants) t.due = document.hidden ? 0 : accrue(t.due, t.asks, now - sharedAt)
  sharedAt = now
  if (sharing || !$('gone').hidden || tenants.every(t => t.due < 1)) return
  sharing = true
  const n = tenants.map(t => Math.min(Math.floor(t.due), maxRequests))
  tenants.forEach((t, i) => { t.due -= n[i] })
  const fields = [['view', sharesView], ['via', sharesVia]]
  fields.push(...n.map(n => ['n', n]), ...tenants.map(t => ['weight', t.weight]))
  sharesVia = 1 - sharesVia
  const view = await ask('POST', 'play/shares', fields)
  if (view) {
    const t = seconds()
    view.answers.forEach(({ admitted, denied, local }, i) => {
      tenants[i].events.push({ t, sent: admitted + denied, got: admitted, local })
    })
  }
  sharing = false
}

// What a change has led to is said once, when the averages are of the time after it.
let sayAt = Infinity
function sayShares() { sayAt = seconds() + 2 * averaged }

function noteShares() {
  if (document.hidden) return
  const now = seconds(), fair = fairShares()
  for (const t of tenants) t.note(now, fair[t.index])
  const sum = kind => tenants.reduce((sum, t) => sum + t.now[kind], 0)
  showRates($('shares-table').tFoot.rows[0], { asks: sum('asks'), gets: sum('gets'), fair: sum('fair') })
  if (now < sayAt) return
  sayAt = Infinity
  put($('shares-said'), `${tenants.map(t => `${t.name} gets ${t.now.gets.toFixed(1)}`).join(', ')} a second` +
    (tenants.some(t => t.now.local) ? '. Without Redis, each process shares its half of the limit.' : '.'))
}

// Each tenant has a row, with the same scale.
const sharesRow = { height: 112, top: 24, levels: 76 }
function drawShares(now) {
  const svg = $('shares-lines'), width = svg.clientWidth
  if (!width) return
  const left = 34, right = width - 8, { height, levels } = sharesRow
  const x = t => (right - (now - t) / sharesSpan * (right - left)).toFixed(1)
  const shown = tenants.flatMap(t => t.samples.filter(s => s.t > now - sharesSpan))
  const most = nice(Math.max(sharedRate, ...shown.map(s => s.gets)))
  let out = `<clipPath id="shares-plot"><path d="M${left} 0H${right}V${3 * height}H${left}z"/></clipPath>`
  for (const tenant of tenants) {
    const top = tenant.index * height + sharesRow.top, base = top + levels
    const y = rate => (base - Math.min(rate / most, 1) * levels).toFixed(1)
    let gets = '', area = '', fair = '', asks = '', away = '', last
    for (const s of tenant.samples) {
      const gap = !last || s.t - last.t > 2, at = x(s.t) // the page was hidden: it asked for nothing
      if (gap && last) area += `V${base}z`
      area += gap ? `M${at} ${base}L${at} ${y(s.gets)}` : `L${at} ${y(s.gets)}`
      gets += `${gap ? 'M' : 'L'}${at} ${y(s.gets)}`
      fair += gap ? `M${at} ${y(s.fair)}` : `H${at}V${y(s.fair)}`
      asks += `${gap ? 'M' : 'L'}${at} ${y(s.asks)}`
      if (!gap && s.local) away += `M${x(last.t)} ${top}H${at}V${base}H${x(last.t)}z`
      last = s
    }
    if (last) area += `V${base}z`
    out += `<g class="tenant-${tenant.index}" data-tenant="${tenant.name}">
      <g clip-path="url(#shares-plot)"><path class="away" d="${away}"/><path class="share-area" d="${area}"/></g>
      <path class="grid" d="M${left} ${top}H${right}"/><path class="base" d="M${left} ${base}H${right}"/>
      <g clip-path="url(#shares-plot)"><path class="asks-line" d="${asks}"/>
        <path class="share-line" d="${gets}"/><path class="fair-line" d="${fair}"/></g>
      <text class="name" x="${left}" y="${top - 8}">${tenant.name}</text>
      <text class="end" x="${left - 6}" y="${top + 5}">${most}</text>
      <text class="end" x="${left - 6}" y="${base + 4}">0</text></g>`
  }
  for (let s = 0; s <= sharesSpan; s += 10) {
    const bottom = 3 * height, at = x(now - s), [where, label] = s === 0 ? ['end', 'now'] : ['middle', `−${s} s`]
    out += `<path class="base" d="M${at} ${bottom - 8}v5"/>
      <text class="${where}" x="${at}" y="${bottom + 12}">${label}</text>`
  }
  svg.innerHTML = out
}

// Drawn smoothly while in view, and once a second otherwise, for a print.
let sharesSeen = false, sharesDrawnAt = 0
new IntersectionObserver(([{ isIntersecting }]) => { sharesSeen = isIntersecting }).observe($('shares-lines'))
function shareFrame() {
  requestAnimationFrame(shareFrame)
  const now = seconds()
  if (now - sharesDrawnAt < (!sharesSeen ? 1 : calm.matches ? .5 : 1 / 30)) return
  sharesDrawnAt = now
  drawShares(now)
}

for (const button of document.querySelectorAll('[data-asks]')) {
  button.addEventListener('click', () => {
    button.dataset.asks.split(' ').forEach((asks, i) => tenants[i].set(asks))
    sayShares()
  })
}
setInterval(share, 100)
setInterval(noteShares, 250)
shareFrame()
