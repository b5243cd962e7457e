-- The fixed window.
--
-- A window starts with a client's first charge and ends a period later; then all that was taken is given back.
--
-- A calendar period is a window too. Its key names it, so it needs no end of its own: the key lives grace longer than the
-- caller's clock says that the period does, as another caller's clock may be behind.
--
-- State: a window is one string key.
--   value  tokens taken; of one that was blocked, three numbers: tokens taken, and how many milliseconds before
--          the key expires the window ends, and the block
--   TTL    milliseconds until the window has ended, and the block
-- Who has no key has taken nothing, so expiry loses nothing.
--
-- decide.lua follows, with the contract: KEYS, ARGV and the reply.

local call, try, match, format = redis.call, redis.pcall, string.match, string.format
local floor, max, min = math.floor, math.max, math.min
local grace = 3600000 -- an hour

-- One window to take from, or each of many: in line, as this is nearly every call. What is not plain is left to
-- decide.lua: at once where it is the only one, and else in a call of its own.
local each, alone = ARGV[1] == 'each', ARGV[1] == 'take' and #KEYS == 1
if each or alone then
  local n, period, limit = ARGV[2] + 0, ARGV[4] + 0, ARGV[6] + 0
  local once, calendar = each and ARGV[3] == '1', ARGV[5] == '0'
  local life = format('%d', calendar and period + grace or period)
  local reply = {}
  for i = 1, #KEYS do
    local key, charges = KEYS[i], (each and not once and ARGV[6 + i] or ARGV[3]) + 0
    local used, left, soon, wait, mark = 0, 0, 0, 0, 0
    local value = try('GET', key)
    if value then
      left = call('PTTL', key)
      if left > 0 then
        used = tonumber(value) -- nil if it was blocked, or is no window
      elseif left == -1 then
        used = nil
      else
        left = 0
      end
    end
    if used then
      local charged = max(0, min(charges, floor((limit - used) / n)))
      local after = used + charged * n
      mark = left
      if charged > 0 then
        local done
        if left > 0 then
          done = try('INCRBY', key, format('%d', charged * n))
        else
          mark = life + 0
          done = try('SET', key, format('%d', after), 'PX', life)
        end
        if type(done) == 'table' and done.err then used = nil end
      end
      soon = mark
      if calendar then soon, left = min(mark, period), period end
      if after + n > limit and n <= limit then wait = soon end
    end
    if used and alone then return {used, soon, wait, left, mark} end
    if each then
      local j = 5 * i
      reply[j - 4], reply[j - 3], reply[j - 2], reply[j - 1], reply[j] = used or -1, soon, wait, left, mark
    end
  end
  if each then return reply end
end

-- size is how many integers the reply has of each window.
local size = 5

-- drainOf returns nothing: nothing flows back.
local function drainOf() end

-- read finds the tokens taken, and for how long the window goes on, and the block.
local function read(w)
  w.used, w.left, w.block = 0, 0, 0
  local value = call('GET', w.key)
  if not value then return end
  local ttl = call('PTTL', w.key)
  if ttl == -1 then error('the key has no expiry, so it is no window') end
  if ttl <= 0 then return end
  local used = tonumber(value)
  if used then
    w.used, w.left = used, ttl
    return
  end
  local before, block
  used, before, block = match(value, '^(%d+) (%d+) (%d+)$')
  w.marked, w.block = true, max(0, ttl - block)
  if ttl > before + 0 then w.used, w.left = used + 0, ttl - before end
end

-- most returns how many tokens may be taken with debt.
local function most(w) return min(2 * w.limit, 9007199254740991) end

-- found returns how many tokens to decide by.
local function found(w) return w.block > 0 and max(w.used, w.limit) or w.used end

local function write(w)
  if w.block == 0 then
    call('SET', w.key, format('%d', w.used), 'PX', format('%d', w.left))
  else
    local ttl = max(w.left, w.block)
    call('SET', w.key, format('%d %d %d', w.used, ttl - w.left, ttl - w.block), 'PX', format('%d', ttl))
  end
end

local function take(w, tokens)
  w.used = w.used + tokens
  if w.left == 0 then
    w.left = w.calendar and w.period + grace or w.period
    write(w)
  elseif w.marked then
    write(w)
  else
    call('INCRBY', w.key, format('%d', tokens))
  end
end

-- loose returns how many tokens others may give back.
local function loose(w) return w.used end

local function give(w, tokens)
  if w.used == 0 then return end
  w.used = max(0, w.used - tokens)
  if w.used == 0 then w.left = 0 end
  if w.left == 0 and w.block == 0 then
    call('DEL', w.key)
  else
    write(w)
  end
end

-- mark returns for how long the window goes on.
local function mark(w) return w.left end

-- giveMarked does nothing if the window had ended: within a period, one that began later goes on for longer. A calendar
-- period has a key of its own.
local function giveMarked(w, tokens, mark)
  if mark >= 0 and (w.calendar or w.left <= mark) then give(w, tokens) end
end

local function block(w, ms)
  if ms > w.block then
    w.block = ms
    write(w)
  end
end

-- expire does nothing: what is written expires.
local function expire() end

-- leaves returns in how many milliseconds so many of the tokens taken are given back.
local function leaves(w, _) return w.calendar and min(w.left, w.period) or w.left end
