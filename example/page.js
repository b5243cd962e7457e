'use strict'
const $ = id => document.getElementById(id)
const seconds = () => performance.now() / 1000
const calm = matchMedia('(prefers-reduced-motion: reduce)')
const periods = [1, 2, 5, 10, 15, 20, 30, 60]
const maxRequests = 100 // in one call, as the server has it
const clamp = (x, low, high) => Math.min(high, Math.max(low, x))
const count = (n, noun) => `${n} ${noun}${n === 1 ? '' : 's'}`

// Tokens are what one process sees of one client's tokens, and how they come back from then on.
class Tokens {
  at = 0
  back = [] // of a sliding window: when each token comes back, in order

  constructor(algorithm) { this.algorithm = algorithm }

  // learn takes over what the server tells, after it has admitted so many requests.
  learn(view, admitted) {
    const now = seconds()
    Object.assign(this, view, { at: now, retryAt: now + view.retry / 1000, resetAt: now + view.reset / 1000 })
    // The server tells how many tokens are missing. Those of the last requests come back last, and what is missing without
    // a request of this page was taken by somebody else just now.
    const missing = view.limit - view.remaining
    this.back = this.back.filter(t => t > now).concat(Array(admitted).fill(this.resetAt))
    this.back = this.back.slice(Math.max(0, this.back.length - missing))
    while (this.back.length < missing) this.back.push(this.resetAt)
  }

  // left is how many tokens are there now: of a bucket with a fraction.
  left(now) {
    if (now >= this.resetAt) return this.limit
    switch (this.algorithm) {
      case 'token-bucket': // the time until it is full is exact
        return clamp(this.limit - (this.resetAt - now) * this.perSecond, this.remaining, this.limit)
      case 'fixed-window': return this.remaining
      default: return this.limit - this.back.filter(t => t > now).length
    }
  }

  whole(now) { return Math.floor(this.left(now) + 1e-6) }
  wait(now) { return this.whole(now) > 0 ? 0 : Math.max(0, this.retryAt - now) }
}

const about = {
  'token-bucket': {
    title: 'Token bucket',
    rule: t => `Holds ${count(t.limit, 'token')} and regains ${rateText(t)}, evenly.`,
    inside: 'M19 22h82l-8 86q-1 7-8 7H35q-7 0-8-7z',
    top: 22, bottom: 115,
    frame: '<circle class="drop" cx="60" cy="6" r="4"/><path d="M18 20l8.5 88q.8 8 8.5 8h50q7.7 0 8.5-8L102 20"/><path class="rim" d="M12 20h96"/>',
  },
  'fixed-window': {
    title: 'Fixed window',
    rule: t => `The first request opens a window of ${periodText(t.period / 1000)}, in which ${count(t.limit, 'request')} may pass.`,
    inside: 'M60 14a46 46 0 1 0 .01 0z',
    top: 14, bottom: 106,
    frame: '<circle class="track-ring" cx="60" cy="60" r="53"/><path class="ring"/>',
  },
  'sliding-window': {
    title: 'Sliding window',
    rule: t => `In any ${periodText(t.period / 1000)}, ${count(t.limit, 'request')} may pass. Each dot is one, on its way out.`,
    inside: 'M9 6h102q4 0 4 4v48q0 4-4 4H9q-4 0-4-4V10q0-4 4-4z',
    top: 8, bottom: 62,
    frame: '<path d="M9 5h102q5 0 5 5v48q0 5-5 5H9q-5 0-5-5V10q0-5 5-5z"/><path d="M4 114h112M4 107v7M116 107v7"/><path class="dots"/>',
  },
}
const periodText = s => s === 60 ? '1 min' : `${s} s`
const rateText = t => `${+(t.perSecond * t.period / 1000).toFixed(2)} every ${periodText(t.period / 1000)}`

// What this tab has sent outlives a reload of the page, as the buckets do.
let sent
try { sent = JSON.parse(sessionStorage.getItem('ginlimit')) } catch { /* not kept here */ }
sent ??= {}
function keep() {
  for (const { name, admitted, denied, last } of lanes) sent[name] = { admitted, denied, last }
  try { sessionStorage.setItem('ginlimit', JSON.stringify(sent)) } catch { /* not kept here */ }
}

// A lane is an algorithm, with what both processes see of it.
class Lane {
  tokens
  admitted = 0
  denied = 0
  last // answer
  events = []  // { t, admitted, denied, local }
  samples = [] // { t, left, local }, for the curve

  constructor(name) {
    this.name = name
    this.tokens = [new Tokens(name), new Tokens(name)]
    const { title, inside, frame } = about[name]
    const card = $('lane').content.cloneNode(true).firstElementChild
    card.id = name
    this.find = selector => card.querySelector(selector)
    this.find('h2').textContent = title
    this.find('h2').id = name + '-title'
    card.setAttribute('aria-labelledby', name + '-title')
    this.find('.left').setAttribute('aria-label', title + ': requests left')
    this.find('.held').insertAdjacentHTML('beforebegin', `<clipPath id="${name}-inside"><path d="${inside}"/></clipPath>`)
    this.find('.held').setAttribute('clip-path', `url(#${name}-inside)`)
    this.find('.frame').innerHTML = frame
    $('lanes').append(card)
    this.card = card
    Object.assign(this, sent[name])
    this.showCounts()
  }

  get seen() { return this.tokens[via()] }

  // note keeps what the curve goes through.
  note(now) {
    if (this.seen.at) this.samples.push({ t: now, left: this.seen.left(now), local: this.seen.local })
  }

  learn(views, limit, admitted, process) {
    this.limit = limit
    const now = seconds()
    this.note(now)
    // Each process was asked for itself. If both see the same, they go on to see the same at the same time.
    const [a, b] = views, same = !a.local && !b.local && a.remaining === b.remaining
    this.tokens.forEach((tokens, i) => tokens.learn(same ? a : views[i], i === process || !views[i].local ? admitted : 0))
    this.note(now)
    if (this.rule !== (this.rule = about[this.name].rule(this.seen))) this.find('.rule').textContent = this.rule
  }

  took({ admitted, denied, local, status, header }, process) {
    this.admitted += admitted
    this.denied += denied
    this.events.push({ t: seconds(), admitted, denied, local })
    this.last = { status, header, process, at: Date.now() }
    this.showCounts()
  }

  showCounts() {
    this.find('.admitted dd').textContent = this.admitted
    this.find('.denied dd').textContent = this.denied
  }

  clear() {
    this.admitted = this.denied = 0
    this.events = []
    this.samples = []
    this.last = undefined
    this.showCounts()
  }

  shown = 0
  show(now, passed) {
    const { seen } = this, { top, bottom } = about[this.name]
    if (!seen.at) return
    const left = seen.left(now), whole = seen.whole(now), wait = seen.wait(now)
    const target = calm.matches ? whole : left
    this.shown = calm.matches ? target : target + (this.shown - target) * Math.exp(-12 * passed)
    const y = bottom - (bottom - top) * clamp(this.shown / seen.limit, 0, 1)
    this.find('.water').setAttribute('transform', `translate(0 ${(this.shown < .05 ? 130 : y).toFixed(2)})`) // no wave on the ground
    this.card.classList.toggle('full', left >= seen.limit)
    this.showTime(now, y)

    put(this.find('.left b'), whole)
    put(this.find('.left span'), `left of ${seen.limit}`)
    const meter = this.find('.left')
    meter.setAttribute('aria-valuenow', whole)
    meter.setAttribute('aria-valuemax', seen.limit)
    put(this.find('.wait'), wait > 0 ? `try again in ${waitText(wait)}` : 'the next one passes')
    this.find('.wait').classList.toggle('no', wait > 0)

    const [a, b] = this.tokens.map(t => t.whole(now))
    const verb = seen.local ? 'has' : 'sees'
    const [spanA, spanB] = this.card.querySelectorAll('.shared span')
    put(spanA, `A ${verb} ${a}`)
    put(spanB, `B ${verb} ${b}`)
    spanA.classList.toggle('on', via() === 0)
    spanB.classList.toggle('on', via() === 1)
    put(this.find('.shared em'), seen.local ? 'half of the limit each' : 'counted together')
  }

  // showTime shows how the tokens come back.
  showTime(now, y) {
    const { seen } = this, period = seen.period / 1000
    switch (this.name) {
      case 'token-bucket':
        this.card.style.setProperty('--depth', `${(y - 6).toFixed()}px`)
        this.card.style.setProperty('--token', `${clamp(1 / seen.perSecond, .3, 60).toFixed(2)}s`)
        break
      case 'fixed-window': { // the ring is what is left of the window
        const part = clamp((seen.resetAt - now) / period, 0, .9999), angle = 2 * Math.PI * part
        const x = 60 - 53 * Math.sin(angle), end = 60 - 53 * Math.cos(angle)
        this.find('.ring').setAttribute('d', part > 0 ? `M60 7A53 53 0 ${part > .5 ? 1 : 0} 0 ${x.toFixed(2)} ${end.toFixed(2)}` : '')
        break
      }
      default: { // each dot goes from right to left within the period; those of the same time are stacked
        const stacks = new Map()
        let d = ''
        for (const t of seen.back) {
          if (t <= now) continue
          const same = Math.round(t / period * 15), n = stacks.get(same) ?? 0
          stacks.set(same, n + 1)
          const x = 4 + 112 * clamp((t - now) / period, 0, 1), y = 108 - Math.min(n * 8, 38)
          d += `M${x.toFixed(1)} ${y}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0`
        }
        this.find('.dots').setAttribute('d', d)
      }
    }
  }
}

// put changes an element's text only if it is another: the browser has less to do.
function put(element, text) {
  if (element.textContent !== String(text)) element.textContent = text
}
const waitText = s => s <= 0 ? '0 s' : s < 10 ? `${(Math.ceil(s * 10) / 10).toFixed(1)} s` : `${Math.ceil(s)} s`

const lanes = Object.keys(about).map(name => new Lane(name))
const via = () => Number(document.querySelector('[name=via]:checked').value)
const closer = () => lanes.find(lane => lane.name === document.querySelector('[name=closer]:checked').value)
lanes.forEach((lane, i) => {
  $('closer').insertAdjacentHTML('beforeend',
    `<label><input type="radio" name="closer" value="${lane.name}"${i ? '' : ' checked'}><span>${about[lane.name].title}</span></label>`)
})

// The limit, as ParseLimit reads it.
function limitText() {
  const rate = $('rate').value, burst = $('burst').value, period = periods[$('period').value]
  return `${rate}/${period === 1 ? 's' : period === 60 ? 'm' : period + 's'}` + (burst === rate ? '' : ` burst ${burst}`)
}
const query = fields => String(new URLSearchParams(fields)).replaceAll('%2F', '/')

// fill colours a slider up to its thumb.
function fill(slider) {
  slider.style.setProperty('--fill', `${100 * (slider.value - slider.min) / (slider.max - slider.min)}%`)
}

function showLimit() {
  const period = periodText(periods[$('period').value])
  for (const id of ['rate', 'period', 'burst', 'traffic']) fill($(id))
  $('limit').textContent = limitText()
  $('rate-value').textContent = $('rate').value
  $('rate').setAttribute('aria-valuetext', `${count($('rate').value, 'request')} every ${period}`)
  $('period-value').textContent = period
  $('period').setAttribute('aria-valuetext', period)
  $('burst-value').textContent = $('burst').value
  $('traffic-value').textContent = traffic() ? `${traffic()} a second` : 'off'
  $('traffic').setAttribute('aria-valuetext', traffic() ? `${count(traffic(), 'request')} a second` : 'off')
}
const traffic = () => Number($('traffic').value)

// ask calls the application. It returns nothing if there is no answer, and the page says so.
async function ask(method, path, fields) {
  try {
    const response = await fetch(`${path}?${query(fields)}`, { method, cache: 'no-store', signal: AbortSignal.timeout(30_000) })
    if (!response.ok) throw new Error(await response.text())
    const view = await response.json()
    $('gone').hidden = true
    return view
  } catch {
    $('gone').hidden = false
  }
}

// call asks the application, one call after another, so that answers come in the order of the decisions.
let calls = Promise.resolve(), port
function call(method, path, fields = {}) {
  const limit = limitText(), process = fields.via
  const answered = calls.then(async () => {
    const view = await ask(method, path, { limit, ...fields })
    if (view) learn(view, limit, process)
    return Boolean(view)
  })
  calls = answered
  return answered
}

function learn(view, limit, process) {
  lanes.forEach((lane, i) => {
    const { answer, limit: text, code } = view.lanes[i]
    if (answer) lane.took(answer, process)
    if (limit !== limitText()) return // a slider has moved: another call is under way
    lane.learn(view.processes.map(seen => seen[i]), text, answer?.admitted ?? 0, process)
    lane.code = code
  })
  keep()
  port = view.port
  showRedis(view.redis)
  showCloser()
}

// Requests that are waiting are sent together, as many as the server takes.
let waiting = 0, sending = false, burst // what was sent since the last burst's click, to tell the result
async function send(n) {
  waiting = Math.min(waiting + n, 5 * maxRequests)
  if (sending) return
  sending = true
  while (waiting > 0) {
    const n = Math.min(waiting, maxRequests)
    if (!await call('POST', 'play', { n, via: via() })) {
      waiting = 0
      burst = undefined
      put($('said'), 'The requests were not answered.')
      break
    }
    waiting -= n
  }
  sending = false
  if (burst) {
    const parts = lanes.map((lane, i) => lane.admitted - burst.before[i])
    $('said').textContent = `Of ${burst.n}: bucket admitted ${parts[0]}, fixed window ${parts[1]}, sliding window ${parts[2]}.`
    burst = undefined
  }
}

// Steady traffic is sent as its requests are due, and those that are due while the last ones are under way come together.
const accrue = (due, rate, passed) => Math.min(due + rate * passed, rate) // at most a second's
let due = 0, dueAt = seconds()
setInterval(() => {
  const now = seconds()
  due = accrue(due, traffic(), now - dueAt)
  dueAt = now
  if (due >= 1 && !sending && $('gone').hidden) {
    const n = Math.floor(due)
    due -= n
    send(n)
  }
}, 50)

// look sees what others have taken, and that Redis is gone or back.
let looking = false
async function look() {
  if (looking || document.hidden) return
  looking = true
  await call('GET', 'play')
  looking = false
}

function showRedis({ embedded, running }) {
  const local = lanes[0].tokens.some(tokens => tokens.local)
  document.body.classList.toggle('degraded', local)
  $('redis').hidden = !embedded
  $('redis').setAttribute('aria-checked', running)
  put($('redis-value'), running ? 'on' : 'off')
  put($('status'), local
    ? 'Degraded: each process decides alone, by half of the limit.'
    : embedded
      ? 'It counts for both processes. Switch it off, and they go on alone.'
      : 'It counts for both processes.')
}

function showCloser() {
  const lane = closer()
  if (!lane.code) return
  const addresses = [location.host, `${location.hostname}:${port}`]
  addresses.forEach((address, i) => put($(`address-${i}`), address))
  const fields = lane === lanes[0] ? {} : { algorithm: lane.name }
  put($('text'), lane.limit)
  put($('code'), lane.code)
  const limit = lane.limit.replace(/ [a-z]+-window$/, '') // /try has the algorithm apart
  put($('curl'), `curl -i '${location.protocol}//${addresses[via()]}/try?${query({ limit, ...fields })}'`)
  showAnswer(seconds())
}

const words = { 200: 'OK', 429: 'Too Many Requests' }
let answered // what the table shows
function showAnswer(now) {
  const lane = closer(), { last } = lane
  if (last !== answered) {
    answered = last
    const rows = last
      ? [['Status', `${last.status} ${words[last.status] ?? ''}`], ...Object.entries(last.header).map(([name, values]) => [name, values.join(', ')])]
      : []
    const main = name => /^(status|x-ratelimit|retry)/i.test(name)
    $('answer').tBodies[0].replaceChildren(...rows.sort(([a], [b]) => main(b) - main(a)).map(([name, value]) => {
      const row = document.createElement('tr'), th = document.createElement('th')
      th.scope = 'row'
      th.textContent = name.replace('Ratelimit', 'RateLimit')
      row.className = main(name) ? 'main' : ''
      row.dataset.name = th.textContent
      row.append(th)
      row.insertCell().textContent = value
      row.insertCell()
      return row
    }))
    if (!last) $('answer').tBodies[0].insertRow().insertCell().textContent = 'No request was sent yet.'
  }
  put($('age'), last ? `${ageText((Date.now() - last.at) / 1000)} ago, via ${'AB'[last.process]}` : '')
  if (!last || !lane.seen.at) return
  const tokens = lane.tokens[last.process], wait = tokens.wait(now)
  const present = {
    'Status': wait > 0 ? '429' : '200',
    'X-RateLimit-Remaining': tokens.whole(now),
    'X-RateLimit-Reset': waitText(Math.max(0, tokens.resetAt - now)),
    'Retry-After': waitText(wait),
  }
  for (const row of $('answer').tBodies[0].rows) put(row.cells[2], present[row.dataset.name] ?? '')
}
const ageText = s => s < 1 ? `${Math.floor(s * 10) * 100} ms` : s < 100 ? `${Math.floor(s)} s` : `${Math.floor(s / 60)} min`

// The timeline has a row for each algorithm: a curve of the tokens left above bars of requests, both with linear scales.
const row = { height: 148, level: 26, levels: 60, bars: 102, counts: 32 }
function nice(n) {
  for (const top of [5, 10, 20, 50, 100, 200, 500, 1000, 2000]) if (top >= n) return top
  return n
}

function draw(now) {
  const svg = $('timeline'), width = svg.clientWidth
  if (!width || !lanes[0].seen.at) return
  const left = 34, right = width - 8, period = periods[$('period').value]
  const span = period <= 10 ? 20 : 2 * period, step = [1, 2, 5, 10, 20].find(s => span / s <= (width < 500 ? 4 : 10)), size = span / 80
  const x = t => right - (now - t) / span * (right - left)
  put($('span'), `${span} s`)
  put($('bin'), `${size} s`)

  const bins = lanes.map(lane => {
    lane.events = lane.events.filter(e => e.t > now - 121)
    lane.samples = lane.samples.filter(s => s.t > now - 121)
    const bins = new Map()
    for (const e of lane.events) {
      const i = Math.floor(e.t / size)
      if (!bins.has(i)) bins.set(i, { admitted: 0, denied: 0, local: false })
      bins.get(i).admitted += e.admitted
      bins.get(i).denied += e.denied
      bins.get(i).local ||= e.local
    }
    return bins
  })
  const most = nice(Math.max(...[...bins[0]].filter(([i]) => (i + 1) * size > now - span).map(([, b]) => b.admitted + b.denied), 1))

  let out = `<clipPath id="plot"><path d="M${left} 0H${right}V472H${left}z"/></clipPath>`
  lanes.forEach((lane, n) => {
    const top = n * row.height, base = top + row.level + row.levels, floor = top + row.bars + row.counts
    const limit = Math.max(lane.seen.limit, ...lane.samples.filter(s => s.t > now - span).map(s => s.left))
    const y = tokens => base - tokens / limit * row.levels
    let level = '', area = '', away = '', last
    const sampled = [...lane.samples.filter(s => s.t > now - span - 2), { t: now, left: lane.seen.left(now), local: lane.seen.local }]
    for (const s of sampled) {
      const at = `${x(s.t).toFixed(1)} ${y(s.left).toFixed(1)}`
      const gap = !last || s.t - last.t > 2 // the page was hidden: nobody looked
      if (gap && last) area += `V${base}z`
      const step = lane.name === 'token-bucket' ? '' : `H${x(s.t).toFixed(1)}` // windows have whole tokens
      level += gap ? 'M' + at : step + 'L' + at
      area += gap ? `M${x(s.t).toFixed(1)} ${base}L${at}` : step + 'L' + at
      if (!gap && last.local) away += `M${x(last.t).toFixed(1)} ${top + row.level}H${x(s.t).toFixed(1)}V${floor}H${x(last.t).toFixed(1)}z`
      last = s
    }
    area += `V${base}z`

    let admitted = '', denied = ''
    const wide = Math.max(2, size / span * (right - left) - 2)
    for (const [i, b] of bins[n]) {
      const from = x((i + 1) * size) - wide - 1, h = k => k / most * row.counts
      if (from + wide < left) continue
      if (b.local) away += `M${from.toFixed(1)} ${top + row.level}h${wide.toFixed(1)}V${floor}h${-wide.toFixed(1)}z`
      if (b.admitted) admitted += `M${from.toFixed(1)} ${floor}h${wide.toFixed(1)}v${-h(b.admitted)}h${-wide.toFixed(1)}z`
      if (b.denied) denied += `M${(from + .75).toFixed(1)} ${floor - h(b.admitted)}h${(wide - 1.5).toFixed(1)}v${-h(b.denied)}h${-(wide - 1.5).toFixed(1)}z`
    }
    out += `<g data-row="${lane.name}"><g clip-path="url(#plot)"><path class="away" d="${away}"/>
      <path class="area" d="${area}"/></g>
      <path class="grid" d="M${left} ${y(limit)}H${right}M${left} ${y(limit / 2)}H${right}M${left} ${floor - row.counts}H${right}"/>
      <path class="base" d="M${left} ${base}H${right}M${left} ${floor}H${right}"/>
      <g clip-path="url(#plot)"><path class="admitted" d="${admitted}"/><path class="denied" d="${denied}"/><path class="level" d="${level}"/></g>
      <text class="name" x="${left}" y="${top + 16}">${about[lane.name].title}</text>
      <text class="end" x="${left - 6}" y="${y(limit) + 4}">${limit}</text><text class="end" x="${left - 6}" y="${base + 4}">0</text>
      <text class="end" x="${left - 6}" y="${floor - row.counts + 6}">${most}</text><text class="end" x="${left - 6}" y="${floor + 4}">0</text></g>`
  })
  const bottom = lanes.length * row.height
  for (let s = 0; s <= span; s += step) {
    const at = x(now - s), side = s === 0 ? 'end' : 'middle'
    out += `<path class="base" d="M${at} ${bottom - 10}v5"/><text class="${side}" x="${at}" y="${bottom + 10}">${s === 0 ? 'now' : `−${s} s`}</text>`
  }
  svg.innerHTML = out
}

let frameAt = 0, drawnAt = 0, sampledAt = 0
function frame() {
  requestAnimationFrame(frame)
  const now = seconds()
  if (now - sampledAt >= .1) {
    sampledAt = now
    for (const lane of lanes) lane.note(now)
  }
  for (const lane of lanes) lane.show(now, now - frameAt)
  frameAt = now
  if (now - drawnAt < (calm.matches ? .5 : 1 / 30)) return
  drawnAt = now
  draw(now)
  showAnswer(now)
}

// What the visitor does.
for (const id of ['rate', 'period', 'burst']) {
  $(id).addEventListener('input', () => { showLimit(); look() })
}
$('traffic').addEventListener('input', showLimit)
for (const button of document.querySelectorAll('[data-send]')) {
  button.addEventListener('click', () => {
    const n = Number(button.dataset.send)
    burst ??= { n: 0, before: lanes.map(lane => lane.admitted) }
    burst.n += n
    send(n)
  })
}
for (const radio of document.querySelectorAll('[type=radio]')) {
  radio.addEventListener('change', showCloser)
}
$('reset').addEventListener('click', async () => {
  waiting = 0
  const done = await call('POST', 'play/reset')
  if (done) for (const lane of lanes) lane.clear()
  keep()
  $('said').textContent = done ? 'All buckets are full.' : 'The buckets cannot be filled without Redis.'
  showCloser()
})
$('redis').addEventListener('click', async () => {
  try {
    await fetch($('redis').getAttribute('aria-checked') === 'true' ? 'redis/stop' : 'redis/start', { method: 'POST' })
  } catch { /* look tells */ }
  look()
})
for (const button of document.querySelectorAll('[data-copy]')) {
  button.addEventListener('click', async () => {
    const code = $(button.dataset.copy), label = button.firstChild
    try {
      await navigator.clipboard.writeText(code.textContent)
      label.data = 'Copied'
      $('copied').textContent = 'Copied.'
    } catch { // the browser has no clipboard for this address
      getSelection().selectAllChildren(code)
      label.data = 'Selected'
      $('copied').textContent = 'Selected, to be copied by the keyboard.'
    }
    setTimeout(() => { label.data = 'Copy'; $('copied').textContent = '' }, 2000)
  })
}

// In a narrow window the switch of Redis stays in sight, beside what sends.
const narrow = matchMedia('(max-width: 40rem) and (min-height: 30rem)')
function placeSwitch() { (narrow.matches ? $('traffic').parentElement : $('status')).before($('redis')) }
narrow.addEventListener('change', placeSwitch)

// The theme is the system's until the visitor chooses.
const dark = matchMedia('(prefers-color-scheme: dark)')
let chosen
try { chosen = localStorage.getItem('theme') } catch { /* not kept here */ }
function showTheme() {
  if (chosen) document.documentElement.dataset.theme = chosen
  $('theme').setAttribute('aria-checked', chosen ? chosen === 'dark' : dark.matches)
}
dark.addEventListener('change', showTheme)
$('theme').addEventListener('click', () => {
  chosen = $('theme').getAttribute('aria-checked') === 'true' ? 'light' : 'dark'
  try { localStorage.setItem('theme', chosen) } catch { /* not kept here */ }
  showTheme()
})

showTheme()
showLimit()
placeSwitch()
look()
setInterval(look, 500)
frame()
