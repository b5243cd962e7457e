-- A decision on limits of any kinds: all are charged, or none. The modules of the kinds precede
-- it. In most scripts a fast path precedes it too, and decides the plain cases.
--
-- A module has the size of its part of the reply, and functions on a bucket or window w:
--   read        finds what was taken and blocks; returns the level or tokens to decide by, and of a
--               window its fourth number of the reply
--   state       what read returns, after a charge or a return
--   debt        the most that may be taken after a charge without room
--   take, give  change it; give takes a mark, or else gives back what was taken last
--   returnable  how much may be given back
--   block       denies everything for some milliseconds
--   mark, untilFree, expire  of a window: its mark, the milliseconds until so many of the oldest
--               tokens no longer count, and the last change of a key
--
-- KEYS[i]           bucket or window i, i = 1 … k; all in one hash slot
-- ARGV[1]           the verb
--                     take    charge all or none
--                     charge  charge each, if need be into debt by at most a burst
--                     give    give back the tokens that were taken last
--                     return  give back what one call has taken
--                     block   deny everything for a while
--                     reset   remove what was taken, and blocks; whatever else is at the key, too
--                     clear   give back units of any age, and void earlier calls as a reset does
--                     each    see the fast paths; decide.lua does not support it
--                   For give, return and reset, the records of buckets 1 … k may follow in KEYS
-- ARGV[2]           take: tokens of one charge, 0 if they differ; charge, give, return: tokens; block: milliseconds;
--                   clear: units
-- ARGV[3]           take: charges; only those that fit are made, and 0 only reads
--                   give, return, reset and clear: 1 if KEYS has the records too, else 0
-- ARGV[3i + 1]      token bucket: drain, the units that flow back per millisecond
--                   window: milliseconds of a period
--                   calendar period: milliseconds until it ends
-- ARGV[3i + 2]      token bucket: cost, the units of one token
--                   window: fixed, sliding or calendar
-- ARGV[3i + 3]      token bucket: capacity, the units that it holds
--                   window: limit, the tokens that may be taken in a period
-- ARGV[3k + 3 + i]  take, if ARGV[2] is 0: the tokens of one charge of bucket or window i, k > 1
--                   return: the mark in the reply to the call that took, at most a period ago; or
--                   -1 to give nothing back. A token bucket has no mark. If all are token buckets
--                   and ARGV[3] is 0, these arguments may be absent
-- ARGV[4k + 5i - 1 …]  return, unless ARGV[3] is 0: five numbers, the claim of the call (see
--                   bucket.Claim)
--                     1. units that are still in the bucket
--                     2. units that are still in it, with those that preceded the call, unless
--                        something was given back since
--                     3. milliseconds until now in which others may have given back
--                     4. least milliseconds since the call
--                     5. milliseconds until now in which a reset voids the claim
--
-- Reply: one integer for a single token bucket if the script supports only token buckets, else a
-- list. If the script supports both token buckets and windows, the list begins with -1. It has
--   for each token bucket one integer: the level found (see script.lua); of a charge and a return the
--     level left
--   for each window five integers
--     1. tokens taken before this call, of a charge and a return after it; the limit, if that is more
--        and the window is blocked. In the reply to each, -1 if nothing was done; a call for that key
--        alone returns the error
--     2. milliseconds until there are more tokens than after this call, 0 if all are there
--     3. milliseconds until one more charge fits, 0 if it does
--     4. milliseconds until nothing is left of the window as it was found, 0 if nothing was taken;
--        or until the calendar period and its block end
--     5. the mark, by which return finds the tokens that this call has taken
--
-- State of a bucket or window: see script.lua and kind/*.lua.
-- State of a record: one string key, bucket:back. It records what left a bucket other than by
-- draining, for as long as an earlier call may have tokens to give back. Without a record, tokens
-- that have drained since could be given back. A reset begins a new record.
--   value  when the key expires; the drain of the bucket; 1 if the bucket was reset when the key was
--          made, else 0; then three numbers for each entry: its time, the units given back, and
--          the age of the oldest of these units. Entries that are close in time are merged
--   TTL    milliseconds until nothing is left of what was in the bucket at the last entry, or
--          up to a sixteenth longer; after a reset, as long as any call may claim tokens, or longer
-- Times are milliseconds since the key was made; the TTL gives the current time. A missing key
-- means that nothing was given back. When a record expires, no call is left to which it matters, so
-- expiry loses nothing.
--
-- Portable: integers below 2^53, no TIME, every key in KEYS.

local verb, n, charges = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local returns = verb == 'return'
local back = returns or verb == 'give' or verb == 'clear' or verb == 'reset'
local records = back and charges or 0
local k = records == withRecords and #KEYS / 2 or #KEYS

local readRecord, writeRecord, noteReset, claimed
if records == withRecords then
  local concat, gmatch = table.concat, string.gmatch

  -- readRecord reads the record of a bucket.
  function readRecord(w, key)
    local h = {key = key, ttl = 0, now = 0, stop = 0, drain = w.drain or 1, times = {}}
    local value = call('GET', key)
    if not value then return h end
    local ttl = call('PTTL', key)
    if ttl == -1 then error('the key has no expiry, so it is no record') end
    if ttl <= 0 then return h end
    local stop, drain, reset, list = match(value, '^(%d+) (%d+) ([01])(.*)$')
    if not stop then error('the value is not that of a record') end
    h.ttl, h.now, h.stop, h.reset = ttl, max(0, stop - ttl), stop + 0, reset == '1'
    local ratio = h.drain / drain -- the limit may have changed
    for at, given, age in gmatch(list, ' (%d+) (%d+) (%d+)') do
      h.times[#h.times + 1] = {at + 0, ceil(given * ratio), age + 0}
      h.now = max(h.now, at + 0) -- Redis' clock may be set back
    end
    return h
  end

  -- writeRecord adds to a record what is given back now. drained is how many milliseconds the
  -- bucket's contents take to drain. Entries older than twice the time to drain a full bucket are
  -- dropped: they matter to no call.
  function writeRecord(w, h, given, age, drained)
    local horizon, times, text, units = 2 * drained, {}, {}, 0
    if w.drain then horizon = 2 * ceil(w.limit / w.drain) end
    for _, time in ipairs(h.times) do
      if h.now - time[1] <= horizon then times[#times + 1] = time end
    end
    -- Entries in one span are merged into the latest.
    local last, span = times[#times], max(1, floor(horizon / spans))
    if last and floor(last[1] / span) == floor(h.now / span) then
      local oldest = min(last[1] - last[3], h.now - age)
      last[1], last[2], last[3] = h.now, last[2] + given, h.now - oldest
    else
      times[#times + 1] = {h.now, given, age}
    end
    if #times > maxTimes then -- only if the limit changes often
      local first, second = table.remove(times, 1), times[1]
      second[3] = second[1] - min(first[1] - first[3], second[1] - second[3])
      second[2] = first[2] + second[2]
    end
    for i, time in ipairs(times) do
      units = units + time[2]
      text[i] = format(' %d %d %d', time[1], min(time[2], ever), min(time[3], ever))
    end
    local ttl = drained
    if w.drain then ttl = min(ttl + ceil(units / h.drain), horizon) end
    local list = format(' %d %d', h.drain, h.reset and 1 or 0) .. concat(text)
    if h.stop - h.now >= ttl then -- each change of the expiry moves the clock a little
      call('SET', h.key, format('%d', h.stop) .. list, 'KEEPTTL')
    else
      ttl = ttl + floor(ttl / spans)
      call('SET', h.key, format('%d', h.now + ttl) .. list, 'PX', expiry(h.key, h.ttl, ttl))
    end
  end

  -- noteReset begins a record with a reset. The calls that it voids may have been under a limit whose
  -- bucket drains more slowly: then the key or its record lasted longer, apart from a block.
  function noteReset(w, h)
    local lasts = w.drain and 2 * ceil(w.limit / w.drain) or w.period
    if w.drain then lasts = max(lasts, h.ttl, w.left and w.left - w.block or 0) end
    if w.calendar then lasts = lasts + grace end
    call('SET', h.key, format('%d %d 1', lasts, h.drain), 'PX', format('%d', lasts))
  end
end

if returns then
  -- since returns the units given back in the last age milliseconds that were taken more than made
  -- milliseconds ago.
  local function since(h, age, made)
    local given = 0
    for _, time in ipairs(h.times) do
      local ago = h.now - time[1]
      if ago <= age and ago + time[3] >= made then given = given + time[2] end
    end
    return given
  end

  -- claimed returns how many units of a call bucket i may still give back.
  function claimed(w, i, h)
    local all = n * w.cost
    if charges == 0 then return all end
    local at, given = 4 * k + 5 * i - 1, 0
    local age = ARGV[at + 2] + 0
    if h and h.reset and h.now <= ARGV[at + 4] + 0 then return 0 end
    if h then given = since(h, age, ARGV[at + 3] + 0) end
    local units = max(0, min(all, max(ARGV[at] + 0, ARGV[at + 1] - given)))
    if w.drain and 0 < units and units < all then
      -- Give back a difference of clocks, or of a hundredth of a token, too.
      local rest, hundredth = w.used and w.used - units or 0, floor(w.cost / 100)
      if all - units <= hundredth then
        units = all
      elseif 0 < rest and rest <= max(hundredth, w.drain * (2 + floor(age / 1000))) then
        units = units + min(rest, all - units)
      end
    end
    return units
  end
end

-- known calls a function that reads a key. A reset removes a key that cannot be read.
local function known(read, w, key)
  if verb == 'reset' or verb == 'clear' then
    local done, used, ends = pcall(read, w, key)
    if done then return used, ends end
    call('UNLINK', key) -- which frees a long log in the background
  end
  return read(w, key)
end

-- First decide: read every key.
local all, reply, size, m, last = {}, {}, 0, nil, nil
for i = 1, k do
  local word = ARGV[3 * i + 2]
  local name = word == 'calendar' and 'fixed' or kind[word] and word or 'token'
  if name ~= last then
    m, last = kind[name], name
    if type(m) == 'function' then -- make the module for the first key that needs it
      m = m()
      kind[name] = m
    end
  end
  local w
  if m.drains then
    w = {
      key = KEYS[i], kind = m, drain = ARGV[3 * i + 1] + 0, cost = word + 0,
      limit = ARGV[3 * i + 3] + 0
    }
  else
    w = {
      key = KEYS[i], kind = m, period = ARGV[3 * i + 1] + 0, cost = 1,
      limit = ARGV[3 * i + 3] + 0
    }
    if word == 'calendar' then w.calendar = true end
  end
  local at = size + 1
  for _ = 1, m.size do
    size = size + 1
    reply[size] = 0
  end
  local used, ends = known(m.read, w, KEYS[i])
  if verb == 'take' then
    w.n = n > 0 and n or ARGV[3 * k + 3 + i] + 0
    charges = max(0, min(charges, floor((w.limit - used) / (w.n * w.cost))))
  end
  if records == withRecords and (w.used > 0 or verb == 'reset') and (verb ~= 'give' or w.drain) then
    w.record, w.drained = known(readRecord, w, KEYS[k + i]), max(1, w.left)
    if w.drain then w.drained = min(w.left, ceil(w.limit / w.record.drain)) end
  end
  all[i], reply[at] = w, used
  if m.size > 1 then reply[at + 3] = ends end
end

-- Then commit. Where memory is full, Redis lets a script write that has written before: what is given back needs that.
for i = 1, (verb == 'give' or returns) and k or 0 do
  local w = all[i]
  if w.used > 0 then
    call('PEXPIRE', w.key, format('%d', w.ttl or w.found or w.left))
    break
  end
end
size = 0
for i, w in ipairs(all) do
  local m, at = w.kind, size + 1
  local h, drained = w.record, w.drained
  size = size + m.size
  if verb == 'take' then
    if charges > 0 then m.take(w, charges * w.n) end
    if m.untilFree then
      local soon, wait, short = w.block, w.block, w.used + w.n - w.limit
      if w.used > 0 then soon = max(soon, m.untilFree(w, max(1, w.used - w.limit + 1))) end
      if short > 0 and w.n <= w.limit then wait = max(wait, m.untilFree(w, short)) end
      reply[at + 1], reply[at + 2] = soon, wait
    end
  elseif verb == 'charge' then
    local tokens = min(n, floor((m.debt(w) - w.used) / w.cost))
    if tokens > 0 then m.take(w, tokens) end
  elseif verb == 'give' then
    local units = min(n * w.cost, m.returnable(w))
    if h and units > 0 then writeRecord(w, h, units, ever, drained) end
    m.give(w, n * w.cost)
  elseif verb == 'clear' then
    m.give(w, min(n, m.returnable(w)))
    if h then pcall(noteReset, w, h) end -- where memory is full, without the record
  elseif returns then
    local units = claimed(w, i, h)
    if units > 0 then
      local gone = min(units, m.returnable(w))
      if h and w.drain and gone > 0 and gone < w.used then -- else the bucket is empty of charges
        writeRecord(w, h, gone, ARGV[4 * k + 5 * i + 1] + 0, drained)
      end
      m.give(w, units, (ARGV[3 * k + 3 + i] or 0) + 0)
    end
  elseif verb == 'block' then
    m.block(w, n)
  else
    call('UNLINK', w.key) -- before the record: then Redis lets it be written where memory is full
    if h and (w.used > 0 or h.ttl > 0) then pcall(noteReset, w, h) end
  end
  if m.mark then reply[at + 4] = m.mark(w) end
  if m.expire then m.expire(w) end
  if verb == 'charge' or returns then
    local used, ends = m.state(w)
    reply[at] = used
    if m.size > 1 then reply[at + 3] = ends end
  end
end

if kind.token and kind.fixed then
  table.insert(reply, 1, whole)
elseif kind.token and k == 1 then
  return reply[1], charges
end
return reply, charges
