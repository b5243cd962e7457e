-- A decision on buckets and windows: all of them charged or none. It follows script.lua, fixed_window.lua, sliding_window.lua
-- or mixed.lua, which keep the state, and decide on one bucket or window each.
--
-- KEYS[i]         bucket or window i, i = 1 … k; all in one hash slot
-- ARGV[1]         the verb: take; charge, into debt if it must, up to a burst of it; give, to give back what was taken last;
--                 return, to give back what one call has taken; block; reset; or each, to take from each for itself
--                 For give, return and reset the records of buckets 1 … k may follow: see below
-- ARGV[2]         take and each: tokens of a charge; charge: tokens; give and return: tokens to give back; block: milliseconds
-- ARGV[3]         take: charges, of which as many are made as fit, 0 looks; each: 1 if each is charged once; give, return and
--                 reset: 1 if KEYS has the records too, 2 if it has these alone, 0 or 3 if it has none of them
-- ARGV[3i + 1]    drain of bucket i: units that flow back per millisecond; or period of window i in milliseconds; or
--                 milliseconds until calendar period i ends
-- ARGV[3i + 2]    cost of bucket i: units that one token weighs; 1 of a window, 0 of a calendar period
-- ARGV[3i + 3]    capacity of bucket i: units it holds; or limit of window i: tokens that may be taken in a period
--                 With each, ARGV[4], ARGV[5] and ARGV[6] are those of every key, and no key comes twice
-- ARGV[3k + 3 + i]  return, but of token buckets alone: the mark in the reply to that call, at most a period ago; or -1, and
--                 nothing is given back. Nor is what the window no longer has of the tokens with that mark
-- ARGV[4k + 6i - 2 …]  return, unless ARGV[3] is 0: units of the call that are left for certain without a reset; units that
--                 are left, with what was there before, if nothing was given back since; the milliseconds until now in which
--                 others may have given back since; those since the call at least; those in which the bucket may have been
--                 reset; and how many resets in these were before the call
-- ARGV[6 + i]     each: charges of key i; absent if ARGV[3] is 1
--
-- Reply: of token buckets alone, the level of each (see script.lua). Else five integers for each key, in one list
--   1. tokens taken before this call, and the limit if that is more where the window is blocked; or the level. With each,
--      -1 if nothing was done; a call for that key alone tells why
--   2. milliseconds until it has more to give than after this call, 0 if it has all
--   3. milliseconds until one more charge fits, 0 if it does
--   4. milliseconds until nothing is left of the window as it was found, 0 if there was none; or until the calendar period
--      ends, and a block of it if there is one
--   5. the mark: by which return finds the tokens that this call has taken
--   Of a token bucket, the level tells the others, which are 0.
--   Of records alone, the first number is how many units may be given back, or were noted
--
-- State of a record: one string key, bucket:back. It says what has left a bucket other than by draining, as long as a call
-- from before that may have tokens to give back. Without it, those tokens could be given back though they have drained.
--   value  when the key expires; the drain of the bucket; then of each time: when it was, the units that were given
--          back, how long before the oldest of them were taken, and the units that a reset took away. Times that are close
--          are one
--   TTL    milliseconds until nothing is left of what was in the bucket at the last of these times
-- Times are milliseconds since the key was made, which the TTL tells. Without a key, nothing was given back.
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local verb, n, charges = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local all, reply = {}, {}
local back = verb == 'give' or verb == 'return' or verb == 'reset'
local records = back and charges or 0 -- which of the keys there are
local k = records == 1 and #KEYS / 2 or #KEYS

-- history reads the record of a bucket.
local function history(w, key)
  local h = {key = key, now = 0, stop = 0, drain = drainOf(w) or 1, drains = drainOf(w), times = {}}
  local value = call('GET', key)
  if not value then return h end
  local ttl = call('PTTL', key)
  if ttl == -1 then error('the key has no expiry, so it is no record') end
  if ttl <= 0 then return h end
  local stop, drain, list = string.match(value, '^(%d+) (%d+)(.*)$')
  if not stop then error('the value is not that of a record') end
  h.now, h.stop = max(0, stop - ttl), stop + 0
  local ratio = h.drain / drain -- of a limit that was another one then
  for at, given, age, reset in string.gmatch(list, ' (%d+) (%d+) (%d+) (%d+)') do
    h.times[#h.times + 1] = {at + 0, math.ceil(given * ratio), math.ceil(reset * ratio), age + 0}
    h.now = max(h.now, at) -- where Redis' clock is set back
  end
  return h
end

-- since returns what was given back in so many milliseconds until now, of what was taken before that long ago, and what a reset
-- took away in as many.
local function since(h, age, made, resets)
  local given, reset = 0, 0
  for _, time in ipairs(h.times) do
    local ago = h.now - time[1]
    if ago <= age and ago + time[4] >= made then given = given + time[2] end
    if ago <= resets then reset = reset + time[3] end
  end
  return given, reset
end

-- note writes into a record what is given back now. What was in the bucket until now is drained after so many milliseconds. What
-- was given back before twice the time in which a full bucket drains matters to no call any more.
local function note(w, h, given, age, reset, drained)
  local horizon, times, text, units = 2 * drained, {}, {}, 0
  if h.drains then horizon = 2 * math.ceil(w.limit / h.drain) end
  for _, time in ipairs(h.times) do
    if h.now - time[1] <= horizon then times[#times + 1] = time end
  end
  local last, span = times[#times], max(1, floor(horizon / 16)) -- what is given back in one is one time, the latest
  if last and floor(last[1] / span) == floor(h.now / span) and last[3] + reset == 0 then
    local oldest = min(last[1] - last[4], h.now - age)
    last[1], last[2], last[3], last[4] = h.now, last[2] + given, last[3] + reset, h.now - oldest
  else
    times[#times + 1] = {h.now, given, reset, age}
  end
  if #times > 48 then -- after many resets
    local first, second = table.remove(times, 1), times[1]
    second[4] = second[1] - min(first[1] - first[4], second[1] - second[4])
    second[2], second[3] = first[2] + second[2], first[3] + second[3]
  end
  for i, time in ipairs(times) do
    units = units + time[2] + time[3]
    text[i] = string.format(' %d %d %d %d', time[1], min(time[2], 2 ^ 52), min(time[4], 2 ^ 52), min(time[3], 2 ^ 52))
  end
  local ttl = drained
  if h.drains then ttl = min(ttl + math.ceil(units / h.drain), horizon) end
  ttl = max(h.stop - h.now, ttl)
  call('SET', h.key, string.format('%d %d', h.now + ttl, h.drain) .. table.concat(text), 'PX', string.format('%d', ttl))
end

-- claimed returns how many units of a call a bucket may still give back.
local function claimed(w, i, h)
  local all = n * w.cost
  if charges == 0 then return all end
  local at, given, reset = 4 * k + 6 * i - 2, 0, 0
  local age = ARGV[at + 2] + 0
  if h then given, reset = since(h, age, ARGV[at + 3] + 0, ARGV[at + 4] + 0) end
  local units = max(0, min(all, max(ARGV[at] + 0, ARGV[at + 1] - given)) - max(0, reset - ARGV[at + 5] * w.limit))
  if drainOf(w) and 0 < units and units < all then -- what clocks differ by, or less than a token's hundredth
    local rest, hundredth = w.used and w.used - units or 0, floor(w.cost / 100)
    if all - units <= hundredth then
      units = all
    elseif 0 < rest and rest <= max(hundredth, drainOf(w) * (2 + floor(age / 1000))) then
      units = units + min(rest, all - units)
    end
  end
  return units
end

for i = 1, k do
  local cost = ARGV[3 * i + 2] + 0
  local w = {
    key = KEYS[i], period = ARGV[3 * i + 1] + 0, cost = max(1, cost), calendar = cost == 0, limit = ARGV[3 * i + 3] + 0
  }
  local first = size * (i - 1) + 1
  if records == 2 then
    local h, given, age, reset = history(w, KEYS[i]), 0, 2 ^ 52, 0
    if verb == 'return' then
      given, age = claimed(w, i, h), ARGV[4 * k + 6 * i] + 0
    elseif verb == 'give' then
      given = min(n * w.cost, w.limit)
    else
      reset = w.limit
    end
    note(w, h, given, age, reset, h.drains and math.ceil(w.limit / h.drain) or w.period)
    reply[first] = given + reset
    for j = 1, size - 1 do reply[first + j] = 0 end
  else
    read(w)
    local used = found(w)
    charges = verb == 'take' and max(0, min(charges, floor((w.limit - used) / (n * w.cost)))) or charges
    all[i], reply[first] = w, used
    if size > 1 then
      local left = w.left
      if w.calendar then left = w.block == 0 and w.period or min(left, w.period) end
      reply[5 * i - 3], reply[5 * i - 2], reply[5 * i - 1] = 0, 0, max(left, w.block)
    end
  end
end

for i, w in ipairs(all) do
  local h, drained
  if records == 1 and w.used > 0 and (verb ~= 'give' or drainOf(w)) then
    h, drained = history(w, KEYS[k + i]), max(1, w.left)
    if h.drains then drained = min(w.ttl, math.ceil(w.limit / h.drain)) end
  end
  if verb == 'charge' then
    local tokens = min(n, floor((most(w) - w.used) / w.cost))
    if tokens > 0 then take(w, tokens) end
  elseif verb == 'give' then
    local units = min(n * w.cost, loose(w))
    if h and units > 0 then note(w, h, units, 2 ^ 52, 0, drained) end
    give(w, n * w.cost)
  elseif verb == 'return' then
    local units = claimed(w, i, h)
    if units > 0 then
      local gone = min(units, loose(w))
      if h and h.drains and gone > 0 and gone < w.used then note(w, h, gone, ARGV[4 * k + 6 * i] + 0, 0, drained) end -- else nothing is left
      giveMarked(w, units, (ARGV[3 * k + 3 + i] or 0) + 0)
    end
  elseif verb == 'block' then
    block(w, n)
  elseif verb == 'reset' then
    if h then pcall(note, w, h, 0, 0, w.limit, drained) end -- a reset is made where memory is full, too
    call('DEL', w.key)
  else
    if charges > 0 then take(w, charges * n) end
    if size > 1 then
      local soon, wait, short = w.block, w.block, w.used + n - w.limit
      if w.used > 0 then soon = max(soon, leaves(w, max(1, w.used - w.limit + 1))) end
      if short > 0 and n <= w.limit then wait = max(wait, leaves(w, short)) end
      reply[5 * i - 3], reply[5 * i - 2] = soon, wait
    end
  end
  if size > 1 then
    reply[5 * i] = mark(w)
    expire(w)
  end
end
if size == 1 and k == 1 then return reply[1] end
return reply
