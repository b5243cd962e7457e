-- The sliding window.
--
-- It is an exact log of the last period: each token counts until a period after it was taken.
--
-- State: a window is one list key.
--   [0]  the header: the total before the first entry, and at the last one; when the key expires; and if it was
--        blocked, also when that ends
--   [2i - 1], [2i]  entry i of the log, oldest first: when tokens were taken, and the total of all with them
--   TTL  milliseconds until the last token has left, and the block has ended
-- There are no more entries than tokens, and what is taken in one millisecond is one entry. Totals are counted modulo
-- wrap, so that they never pass 2^53, and searched by halves, so that no call takes longer than a long log is deep.
-- Times are milliseconds since the log began. The TTL tells what time it is, so long before the key expires: no
-- clock is read but that of Redis' expiry, not even by TIME, which some servers refuse. Where that clock is set
-- back, the log's stands still until it has caught up.
-- Who has no key has taken nothing, so expiry loses nothing.
--
-- decide.lua follows, with the contract: KEYS, ARGV and the reply.

local call, try, match, format = redis.call, redis.pcall, string.match, string.format
local floor, max, min = math.floor, math.max, math.min
local wrap = 4503599627370496 -- 2^52, more than a limit

-- One window to take from, or each of many: in line, as this is nearly every call. What is not plain is left to
-- decide.lua: at once where it is the only one, and else in a call of its own.
local each, alone = ARGV[1] == 'each', ARGV[1] == 'take' and #KEYS == 1
if each or alone then
  local n, period, limit = ARGV[2] + 0, ARGV[4] + 0, ARGV[6] + 0
  local once = each and ARGV[3] == '1'
  local reply = {}
  for i = 1, #KEYS do
    local key, charges = KEYS[i], (each and not once and ARGV[6 + i] or ARGV[3]) + 0
    local used, left, now, base, total, gone = 0, 0, 0, 0, 0, 0
    local list = try('LRANGE', key, '0', '4')
    local oldest, first -- when it was made, and its tokens
    if list[1] then
      left = call('PTTL', key)
      if left > 0 then
        local stop
        base, total, stop = match(list[1], '^(%d+) (%d+) (%d+)$') -- not if it was blocked, or is no window
        oldest, first = tonumber(list[2]), tonumber(list[3])
        if base and first then
          left = min(left, period)
          now = stop - left
          if oldest + period <= now then
            gone, base = 1, first
            oldest, first = tonumber(list[4]), tonumber(list[5])
          end
        end
        if base and first and oldest + period <= now then -- more than one entry has left
          local from, to = 3, floor((call('LLEN', key) - 1) / 2)
          while from < to do
            local middle = floor((from + to) / 2)
            if (tonumber(call('LINDEX', key, 2 * middle - 1)) or 0) + period > now then
              to = middle
            else
              from = middle + 1
            end
          end
          gone, list = from - 1, call('LRANGE', key, 2 * from - 2, 2 * from)
          base, oldest, first = tonumber(list[1]), tonumber(list[2]), tonumber(list[3])
        end
        if base and first then
          used, first = (total - base) % wrap, (first - base) % wrap
        else
          used = nil
        end
      elseif left == -1 then
        used = nil
      else
        left = 0
      end
    elseif list.err then
      used = nil
    end

    local soon, wait = 0, 0
    if used then
      local charged = max(0, min(charges, floor((limit - used) / n)))
      local tokens = charged * n
      if not oldest and tokens > 0 then oldest, first = now, tokens end
      if oldest then soon = oldest + period - now end
      local short = used + tokens + n - limit
      if short > 0 and (charges == 0 or charged < charges) then
        if n <= limit then wait = soon end
        if oldest and short > first then used = nil end -- a matter of more than the oldest tokens
      end
      if used and charged > 0 then
        total = (total + tokens) % wrap
        local text = format('%d', total)
        local header, done = format('%d %s %d', base, text, now + period), nil
        if left == 0 then
          if list[1] then call('DEL', key) end -- at its last moment
          done = try('RPUSH', key, header, '0', text)
          if type(done) == 'number' then
            done = try('PEXPIRE', key, ARGV[4])
            if type(done) ~= 'number' then call('DEL', key) end
          end
        else
          done = try('LSET', key, gone == 0 and '0' or 2 * gone, header)
          if type(done) == 'number' or done.ok then
            if gone > 0 then call('LTRIM', key, 2 * gone, '-1') end
            if left == period then -- in the same millisecond as the newest entry
              call('LSET', key, '-1', text)
            else
              call('RPUSH', key, format('%d', now), text)
            end
            call('PEXPIRE', key, ARGV[4])
          end
        end
        if type(done) == 'table' and done.err then used = nil end
      end
    end
    if used and alone then return {used, soon, wait, left, now} end
    if each then
      local j = 5 * i
      reply[j - 4], reply[j - 3], reply[j - 2], reply[j - 1], reply[j] = used or -1, soon, wait, left, now
    end
  end
  if each then return reply end
end

-- size is how many integers the reply has of each window.
local size = 5

-- drainOf returns nothing: nothing flows back.
local function drainOf() end

-- at returns when entry i was made.
local function at(w, i) return call('LINDEX', w.key, 2 * i - 1) + 0 end

-- taken returns the tokens of the entries that count, up to entry i.
local function taken(w, i) return (call('LINDEX', w.key, 2 * i) - w.base) % wrap end

-- find returns the first of the entries from one on of which a test is true, as it is of all after that.
local function find(w, from, test)
  local to = w.entries
  while from < to do
    local middle = floor((from + to) / 2)
    if test(middle) then to = middle else from = middle + 1 end
  end
  return from
end

-- read finds the tokens in the log, without those of the first entries, w.gone in number, which have left.
local function read(w)
  w.used, w.left, w.block, w.now, w.gone, w.entries, w.base, w.total = 0, 0, 0, 0, 0, 0, 0, 0
  local header = call('LINDEX', w.key, '0')
  if not header then return end
  local ttl = call('PTTL', w.key)
  if ttl == -1 then error('the key has no expiry, so it is no window') end
  w.exists = true
  w.over = ttl <= 0 -- it is at its last moment, or gone since
  if w.over then return end
  local base, total, stop, block = match(header, '^(%d+) (%d+) (%d+) ?(%d*)$')
  w.base, w.total, w.now = base + 0, total + 0, stop - ttl
  w.entries = floor((call('LLEN', w.key) - 1) / 2)
  local newest = w.entries > 0 and at(w, w.entries)
  if newest then w.now = max(w.now, newest) end
  if block ~= '' then w.block = max(0, block - w.now) end
  if not newest or newest + w.period <= w.now then
    w.gone = w.entries
    w.base = w.total
    return
  end
  w.left = newest + w.period - w.now
  w.gone = find(w, 1, function(i) return at(w, i) + w.period > w.now end) - 1
  if w.gone > 0 then w.base = call('LINDEX', w.key, 2 * w.gone) + 0 end
  w.used = (w.total - w.base) % wrap
end

-- most returns how many tokens may be taken with debt.
local function most(w) return min(2 * w.limit, wrap - 1) end

-- found returns how many tokens to decide by.
local function found(w) return w.block > 0 and max(w.used, w.limit) or w.used end

-- keep writes the header, and forgets the entries that have left. The log's last token leaves in w.left. Afterwards
-- expire is to be called.
local function keep(w)
  w.fresh, w.ttl = w.over or not w.exists, max(w.left, w.block)
  local stop = w.now + w.ttl
  local header = format('%d %d %d', w.base, w.total, stop)
  if w.block > 0 then header = format('%s %d', header, w.now + w.block) end
  if w.over then call('DEL', w.key) end
  if w.fresh then
    call('RPUSH', w.key, header)
  else
    call('LSET', w.key, 2 * w.gone, header)
    if w.gone > 0 then call('LTRIM', w.key, 2 * w.gone, '-1') end
    w.entries, w.gone = w.entries - w.gone, 0
  end
end

-- expire sets when the key expires, as the last that is done to it: before Redis 7.2 the clock goes on while a script
-- runs, and a key whose last millisecond has ended is gone at once.
local function expire(w)
  if not w.ttl then return end
  local done = try('PEXPIRE', w.key, format('%d', w.ttl))
  if type(done) ~= 'number' then
    if w.fresh then call('DEL', w.key) end
    error(done.err)
  end
end

local function take(w, tokens)
  local same = w.left == w.period
  w.used, w.total, w.left = w.used + tokens, (w.total + tokens) % wrap, w.period
  keep(w)
  if same then
    call('LSET', w.key, '-1', format('%d', w.total))
  else
    call('RPUSH', w.key, format('%d', w.now), format('%d', w.total))
    w.entries = w.entries + 1
  end
end

-- loose returns 0: an entry of the log that is given back is gone, so no other call gives it back.
local function loose() return 0 end

-- give removes the tokens that were taken last.
local function give(w, tokens)
  tokens = min(tokens, w.used)
  if tokens == 0 then return end
  if tokens == w.used and w.block == 0 then
    call('DEL', w.key)
    return
  end
  w.used, w.total = w.used - tokens, (w.total - tokens) % wrap
  w.left = 0
  local last = w.gone
  if w.used > 0 then
    last = find(w, 1 + w.gone, function(i) return taken(w, i) >= w.used end)
    w.left = at(w, last) + w.period - w.now
    call('LSET', w.key, 2 * last, format('%d', w.total))
  end
  last = last - w.gone
  keep(w) -- before LTRIM, which does not fail where memory is full
  call('LTRIM', w.key, '0', 2 * last)
  w.entries = last
end

-- mark returns the time of the log.
local function mark(w) return max(0, w.now) end

-- giveMarked removes tokens of the entry made at the time of the mark. The entries after it are written again, as their
-- totals fall. If they are too many, nothing is given back, so that no call takes long.
local function giveMarked(w, tokens, mark)
  if w.used == 0 then return end
  local i = find(w, 1 + w.gone, function(i) return at(w, i) >= mark end)
  if at(w, i) ~= mark or w.entries - i > 1000 then return end
  local own = taken(w, i) - (i > 1 + w.gone and taken(w, i - 1) or 0)
  if own <= tokens and own == w.used and w.block == 0 then
    call('DEL', w.key)
    return
  end
  tokens = min(tokens, own)
  local tail, after = call('LRANGE', w.key, 2 * i - 1, '-1'), {}
  for j = tokens == own and 3 or 1, #tail, 2 do
    after[#after + 1], after[#after + 2] = tail[j], format('%d', (tail[j + 1] - tokens) % wrap)
  end
  w.used, w.total = w.used - tokens, (w.total - tokens) % wrap
  if w.used == 0 then
    w.left = 0
  elseif #after == 0 then
    w.left = at(w, i - 1) + w.period - w.now
  end
  local before = 2 * (i - w.gone - 1)
  keep(w)
  call('LTRIM', w.key, '0', before)
  for j = 1, #after, 100 do call('RPUSH', w.key, unpack(after, j, min(j + 99, #after))) end
end

local function block(w, ms)
  if ms > w.block then
    w.block = ms
    keep(w)
  end
end

-- leaves returns in how many milliseconds so many of the tokens taken have left.
local function leaves(w, tokens)
  return at(w, find(w, 1 + w.gone, function(i) return taken(w, i) >= tokens end)) + w.period - w.now
end
