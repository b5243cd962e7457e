-- Sliding windows: how decide.lua reads and changes one.
--
-- A window is an exact log of the last period: each token counts until a period after it was taken.
--
-- State: a window is one list key.
--   [0]  the header: the total before the first entry; the total at the last one; when the key
--        expires; and, if it was blocked, when the block ends
--   [2i - 1], [2i]  entry i of the log, oldest first: when tokens were taken, and the total of all
--        tokens up to then
--   TTL  milliseconds until the last token no longer counts, and the block has ended
-- Tokens taken in one millisecond are one entry, so there are never more entries than tokens.
-- Totals are counted modulo wrap, so they never pass 2^53. Searches are binary, so a call's time
-- grows with the logarithm of the log's length.
-- Times are milliseconds since the log began; the TTL gives the current time. The only clock is
-- Redis' key expiry: some servers deny TIME. If that clock is set back, the log's clock stands
-- still until it has caught up.
-- A missing key is an untouched window, so expiry loses nothing. If a Refund gives back all tokens, the
-- header stays until they would have left: a new log would have the times of the old one, which are
-- the marks of calls whose tokens are gone.

-- at returns the time of entry i.
local function at(w, i) return call('LINDEX', w.key, 2 * i - 1) + 0 end

-- taken returns the tokens of the live entries up to entry i.
local function taken(w, i) return (call('LINDEX', w.key, 2 * i) - w.base) % wrap end

-- find returns the first entry, from one on, that passes a test. All entries after it pass too.
local function find(w, from, test)
  local to = w.entries
  while from < to do
    local middle = floor((from + to) / 2)
    if test(middle) then to = middle else from = middle + 1 end
  end
  return from
end

-- scan finds the tokens in the log, and the number of its first entries that have expired:
-- w.expired.
local function scan(w)
  w.used, w.left, w.block, w.now, w.expired, w.entries, w.base, w.total = 0, 0, 0, 0, 0, 0, 0, 0
  w.found = 0
  local header = call('LINDEX', w.key, '0')
  if not header then
    w.fresh = true
    return
  end
  local ttl = call('PTTL', w.key)
  if ttl == -1 then error('the key has no expiry, so it is no window') end
  if ttl <= 0 then -- its expiry is due, or past
    w.fresh, w.over = true, true
    return
  end
  w.found = ttl
  local base, total, stop, block = match(header, '^(%d+) (%d+) (%d+) ?(%d*)$')
  w.base, w.total, w.now = base + 0, total + 0, stop - ttl
  w.entries = floor((call('LLEN', w.key) - 1) / 2)
  local newest = w.entries > 0 and at(w, w.entries)
  if newest then w.now = max(w.now, newest) end
  if block ~= '' then w.block = max(0, block - w.now) end
  if not newest or newest + w.period <= w.now then
    w.expired = w.entries
    w.base = w.total
    return
  end
  w.left = newest + w.period - w.now
  w.expired = find(w, 1, function(i) return at(w, i) + w.period > w.now end) - 1
  if w.expired > 0 then w.base = call('LINDEX', w.key, 2 * w.expired) + 0 end
  w.used = (w.total - w.base) % wrap
end

local function state(w)
  return w.block > 0 and max(w.used, w.limit) or w.used, max(w.used > 0 and w.left or 0, w.block)
end

local function read(w)
  scan(w)
  return state(w)
end

local function debt(w) return min(2 * w.limit, wrap - 1) end

-- writeHeader writes the header and removes the expired entries. w.left is the time until the last
-- token expires. The caller then calls expire.
local function writeHeader(w)
  w.ttl = max(w.left, w.block)
  local stop = w.now + w.ttl
  local header = format('%d %d %d', w.base, w.total, stop)
  if w.block > 0 then header = format('%s %d', header, w.now + w.block) end
  if w.over then call('UNLINK', w.key) end
  if w.fresh then
    call('RPUSH', w.key, header)
  else
    call('LSET', w.key, 2 * w.expired, header)
    if w.expired > 0 then call('LTRIM', w.key, 2 * w.expired, '-1') end
    w.entries, w.expired = w.entries - w.expired, 0
  end
end

-- expire sets the key's expiry, as the last change to it. Before Redis 7.2 the clock goes on while
-- a script runs, and a key is gone as soon as its last millisecond has ended.
local function expire(w)
  if not w.ttl then return end
  local done = try('PEXPIRE', w.key, expiry(w.key, w.found, w.ttl))
  if type(done) ~= 'number' then
    if w.fresh then call('DEL', w.key) end
    error(done.err)
  end
end

local function take(w, tokens)
  local same = w.left == w.period
  w.used, w.total, w.left = w.used + tokens, (w.total + tokens) % wrap, w.period
  writeHeader(w)
  if same then
    call('LSET', w.key, '-1', format('%d', w.total))
  else
    call('RPUSH', w.key, format('%d', w.now), format('%d', w.total))
    w.entries = w.entries + 1
  end
end

-- returnable returns 0: entries that are given back are no longer in the log, so no other call
-- gives them back.
local function returnable() return 0 end

-- empty removes all tokens. The next ones have a later time than each of them.
local function empty(w)
  w.used, w.now, w.expired, w.base = 0, w.now + 1, w.entries, w.total
  writeHeader(w)
end

local function giveLast(w, tokens)
  if w.used == 0 then return end
  if tokens >= w.used then return empty(w) end
  w.used, w.total = w.used - tokens, (w.total - tokens) % wrap
  local last = find(w, 1 + w.expired, function(i) return taken(w, i) >= w.used end)
  w.left = at(w, last) + w.period - w.now
  call('LSET', w.key, 2 * last, format('%d', w.total))
  last = last - w.expired
  writeHeader(w) -- before LTRIM, which succeeds where memory is full
  call('LTRIM', w.key, '0', 2 * last)
  w.entries = last
end

local function mark(w) return max(0, w.now) end -- the log's time

-- raiseEarlier removes tokens of entry i, which has own tokens: the totals of the earlier entries rise.
local function raiseEarlier(w, i, tokens, own)
  local head = call('LRANGE', w.key, 2 * w.expired + 1, 2 * i - 2)
  w.used, w.base = w.used - tokens, (w.base + tokens) % wrap
  i = i - w.expired
  local last = w.entries - w.expired
  writeHeader(w) -- before LTRIM, which succeeds where memory is full
  local header, before = call('LINDEX', w.key, '0'), {}
  call('LTRIM', w.key, tokens == own and 2 * i + 1 or 2 * i - 1, '-1')
  for j = #head, 1, -2 do
    before[#before + 1], before[#before + 2] = format('%d', (head[j] + tokens) % wrap), head[j - 1]
  end
  before[#before + 1] = header
  for j = 1, #before, 100 do call('LPUSH', w.key, unpack(before, j, min(j + 99, #before))) end
  w.entries = tokens == own and last - 1 or last
end

-- giveOldest removes the tokens that were taken first.
local function giveOldest(w, tokens)
  local i = find(w, 1 + w.expired, function(i) return taken(w, i) > tokens end)
  w.used, w.base, w.expired = w.used - tokens, (w.base + tokens) % wrap, i - 1
  writeHeader(w)
end

-- giveMarked removes tokens of the entry made at the mark's time. It rewrites the later entries, as
-- their totals fall, or the earlier ones if these are fewer. If both are too many for a call, it
-- removes the oldest tokens instead: more are then taken for a while, and never fewer.
local function giveMarked(w, tokens, mark)
  if w.used == 0 then return end
  local i = find(w, 1 + w.expired, function(i) return at(w, i) >= mark end)
  if at(w, i) ~= mark then return end
  local own = taken(w, i) - (i > 1 + w.expired and taken(w, i - 1) or 0)
  if own <= tokens and own == w.used then
    if w.base > 0 or w.block > 0 then return empty(w) end -- perhaps a Refund has emptied the log before
    w.used = 0
    call('DEL', w.key)
    return
  end
  tokens = min(tokens, own)
  local earlier, later = i - 1 - w.expired, w.entries - i
  if min(earlier, later) > maxRewritten then return giveOldest(w, tokens) end
  if earlier < later then return raiseEarlier(w, i, tokens, own) end
  local tail, after = call('LRANGE', w.key, 2 * i - 1, '-1'), {}
  for j = tokens == own and 3 or 1, #tail, 2 do
    after[#after + 1], after[#after + 2] = tail[j], format('%d', (tail[j + 1] - tokens) % wrap)
  end
  w.used, w.total = w.used - tokens, (w.total - tokens) % wrap
  if #after == 0 then
    w.left = at(w, i - 1) + w.period - w.now
  end
  local before = 2 * (i - w.expired - 1)
  writeHeader(w)
  call('LTRIM', w.key, '0', before)
  for j = 1, #after, 100 do call('RPUSH', w.key, unpack(after, j, min(j + 99, #after))) end
end

local function give(w, tokens, mark)
  if mark then giveMarked(w, tokens, mark) else giveLast(w, tokens) end
end

local function block(w, ms)
  if ms > w.block then
    w.block = ms
    writeHeader(w)
  end
end

local function untilFree(w, tokens)
  return at(w, find(w, 1 + w.expired, function(i) return taken(w, i) >= tokens end)) + w.period -
    w.now
end

return {
  size = 5, read = read, state = state, debt = debt, take = take, returnable = returnable, give = give,
  block = block, mark = mark, untilFree = untilFree, expire = expire
}
