-- Fixed windows and calendar periods: how decide.lua reads and changes one.
--
-- A window starts with a client's first charge and ends a period later. Then all tokens are back.
--
-- A calendar period is a window too. Its key names the period, so its end need not be stored. The
-- key outlives the period by grace, because another caller's clock may be behind.
--
-- State: a window is one string key.
--   value  tokens taken. If it was blocked or emptied, two numbers follow: how many milliseconds
--          before the key expires the window ends, and how many before the key expires the block ends
--   TTL    milliseconds until the window and the block have ended, and one more for each time that a
--          Refund gave back all tokens, at most 511. Until the window ends, the next one counts on
-- A missing key is an untouched window, so expiry loses nothing.
--
-- A mark is the remaining milliseconds of the window, and 2^44 times how often it was emptied before:
-- what was taken before a Refund gave it back is not given back again, of others' tokens.

local emptiedUnit, maxEmptied = 17592186044416, 511 -- 2 ^ 44 is a float in Lua 5.4

local function state(w)
  local ends = w.used > 0 and w.left or 0
  if w.calendar then ends = w.block == 0 and w.period or min(ends, w.period) end
  return w.block > 0 and max(w.used, w.limit) or w.used, max(ends, w.block)
end

local function read(w)
  w.used, w.left, w.block, w.ttl, w.emptied = 0, 0, 0, 0, 0
  local value = call('GET', w.key)
  local ttl = value and call('PTTL', w.key) or 0
  if ttl == -1 then error('the key has no expiry, so it is no window') end
  if ttl > 0 then
    w.ttl = ttl
    local used = tonumber(value)
    if used then
      w.used, w.left = used, ttl
    else
      local before, block
      used, before, block = match(value, '^(%d+) (%d+) (%d+)$')
      w.marked, w.block, w.emptied = true, max(0, ttl - block), min(before + 0, block + 0)
      if ttl > before + 0 then w.used, w.left = used + 0, ttl - before end
    end
  end
  return state(w)
end

local function debt(w) return min(2 * w.limit, exact) end

local function write(w)
  if w.block == 0 and w.emptied == 0 then
    call('SET', w.key, format('%d', w.used), 'PX', expiry(w.key, w.ttl, w.left))
  else
    local ttl = max(w.left, w.block) + w.emptied
    local text = format('%d %d %d', w.used, ttl - w.left, ttl - w.block)
    call('SET', w.key, text, 'PX', expiry(w.key, w.ttl, ttl))
  end
end

local function take(w, tokens)
  w.used = w.used + tokens
  if w.used == tokens then
    w.left = w.calendar and w.period + grace or w.period
    write(w)
  elseif w.marked then
    write(w)
  else
    call('INCRBY', w.key, format('%d', tokens))
  end
end

local function returnable(w) return w.used end

-- give gives tokens back, unless the mark shows that their window has ended: a window that began
-- later goes on for longer, or was emptied more often. Each calendar period has its own key.
local function give(w, tokens, mark)
  if w.used == 0 then return end
  if mark and (floor(mark / emptiedUnit) ~= w.emptied or not w.calendar and w.left > mark % emptiedUnit) then
    return
  end
  tokens = min(tokens, w.used)
  w.used = w.used - tokens
  if w.used == 0 and not mark then w.emptied = min(w.emptied + 1, maxEmptied) end
  if w.used == 0 and w.emptied == 0 then w.left = 0 end
  if w.left == 0 and w.block == 0 then
    call('DEL', w.key)
  elseif w.marked or w.used == 0 then
    write(w)
  else -- the window's end stays as it is, though Redis' clock has gone on
    call('INCRBY', w.key, format('%d', -tokens))
  end
end

local function mark(w) return w.left + w.emptied * emptiedUnit end

local function block(w, ms)
  if ms > w.block then
    w.block = ms
    write(w)
  end
end

local function untilFree(w, _) return w.calendar and min(w.left, w.period) or w.left end

return {
  size = 5, read = read, state = state, debt = debt, take = take, returnable = returnable, give = give,
  block = block, mark = mark, untilFree = untilFree
}
