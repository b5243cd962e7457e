-- Token buckets: how decide.lua reads and changes one. script.lua documents the state, and why
-- expiry loses nothing.
--
-- w.level is the level to decide by, w.used the level without a block's raise for takes.

-- ttls are the TTLs of the keys, counted from when each was read first: before Redis 7.2 the clock
-- goes on while a script runs, so a key that is read again would have a lower level than before.
local ttls = {}

-- blocked returns the lowest level from which no token is available for ms milliseconds.
local function blocked(w, ms) return w.limit - w.cost + ms * w.drain end

local function state(w) return min(w.level, exact) end

local function read(w)
  w.level, w.block, w.used, w.left = 0, 0, 0, 0
  local value = call('GET', w.key)
  if not value then
    ttls[w.key] = nil
    return 0
  end
  local ttl = ttls[w.key] or call('PTTL', w.key)
  if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  if ttl <= 0 then return 0 end
  local rest, before = match(value, '^(%d+) ?(%d*)$')
  if not rest then error('the value is not that of a bucket') end
  if before ~= '' then w.block = max(0, ttl - before) end
  ttls[w.key], w.left, w.rest = ttl, ttl, rest + 0
  w.level = ttl * w.drain
  if w.rest < w.drain then w.level = w.level - w.rest end
  w.used = w.level
  if w.block > 0 and ARGV[1] == 'take' then -- the limit may have been raised since the block
    w.level = max(w.level, blocked(w, w.block))
  end
  return state(w)
end

local function debt(w) return min(2 * w.limit, exact - w.drain) end

-- set writes the key. It always uses SET, so that the first write fails where memory is full and
-- nothing is charged.
local function set(w)
  local text = format('%d', w.rest)
  if w.block > 0 then text = format('%d %d', w.rest, w.left - w.block) end
  call('SET', w.key, text, 'PX', expiry(w.key, ttls[w.key] or 0, w.left))
  ttls[w.key] = w.left
end

local function write(w, level)
  w.level = level
  w.left = ceil(level / w.drain)
  w.rest = w.left * w.drain - level
  set(w)
end

local function take(w, tokens) write(w, w.level + tokens * w.cost) end

-- returnable returns how many units may be given back: none of a block.
local function returnable(w)
  if w.level >= exact then return 0 end
  return w.level - (w.block > 0 and min(w.level, blocked(w, w.block)) or 0)
end

-- give gives units back. Tokens are interchangeable, so there are no marks.
local function give(w, units)
  if w.level == 0 or w.level >= exact then return end
  w.level = w.level - min(units, returnable(w))
  if w.level > 0 then write(w, w.level) else call('DEL', w.key) end
end

-- block raises the level so that the first token comes when the block ends.
local function block(w, ms)
  w.block = max(w.block, ms)
  local minimum = blocked(w, ms)
  if w.level < minimum then
    write(w, minimum)
  else
    set(w)
  end
end

return {
  size = 1, drains = true, read = read, state = state, debt = debt, take = take, returnable = returnable,
  give = give, block = block
}
