-- The token bucket: one decision on the buckets of one key, all charged or none; or many decisions,
-- each on a bucket of its own.
--
-- A reply has one integer for each bucket, the level found: units missing from a full bucket; to take, of a blocked one, at
-- least as many as until the block ends. It is a single integer when there is one key, but not with each. The caller derives
-- what was taken from the levels, by the arithmetic used here.
--
-- State: a bucket is one string key.
--   TTL    milliseconds until it is full: ceil(level / drain)
--   value  what the rounding left over: TTL × drain - level, in 0 … drain - 1. A blocked bucket has a second number
--          after it: how many milliseconds before the key expires the block ends. Later the number means nothing.
--          Version 0.1 wrote minus one minus the number instead, as long as the level was that of a block
-- A block raises the level so far that the first token comes when it ends, and giving back leaves it so far up until
-- then. Taking finds the level so far up too, in case the limit is a larger one by now.
-- A full bucket has no key, so expiry loses nothing, and no clock is read but Redis' own.
--
-- decide.lua follows, with the contract: KEYS, ARGV and the reply.

local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local format, match = string.format, string.match
local exact = 9007199254740991 -- 2^53 - 1, the largest level told

-- One bucket to take from, or each of many: in line, as this is nearly every call.
local verb = ARGV[1]
local each = verb == 'each'
local charges = (each or verb == 'take') and ARGV[3] + 0 or 0
if each or charges > 0 and #KEYS == 1 then
  local once = each and charges == 1
  local drain, charge, capacity = ARGV[4] + 0, ARGV[2] * ARGV[5], ARGV[6] + 0
  local values = each and call('MGET', unpack(KEYS))
  local found = each and {}
  for i = 1, #KEYS do
    local key = KEYS[i]
    local value
    if each then
      value, charges = values[i], once and 1 or ARGV[6 + i] + 0
    else
      value = call('GET', key)
    end
    local level, fresh = 0, not value -- without a key
    if value then
      local ttl = call('PTTL', key)
      if ttl > 0 then
        level = ttl * drain
        if value ~= '0' then
          local rest, before = tonumber(value), nil
          if not rest then
            rest, before = match(value, '^(%d+) (%d+)$')
            rest = tonumber(rest)
          elseif rest < 0 then -- a block of version 0.1
            rest = -1 - rest
          end
          if not rest then
            level = -1
          elseif rest < drain then -- else it is another limit's
            level = level - rest
          end
          if before and ttl > before + 0 then level = max(level, capacity - ARGV[5] + (ttl - before) * drain) end
        end
      elseif ttl == -1 then
        level = -1 -- no expiry, so it is no bucket
      else
        value = false
      end
    end

    if level >= 0 then
      local after = level + charges * charge
      if after > capacity then
        charges = floor((capacity - level) / charge)
        after = level + charges * charge
      end
      if charges > 0 then
        local reply
        local ttl = ceil(after / drain)
        local rest = ttl * drain - after
        if rest == 0 and value == '0' then
          reply = redis.pcall('PEXPIRE', key, format('%d', ttl))
        elseif fresh and each then -- or of another type, as MGET does not tell
          reply = redis.pcall('SET', key, format('%d', rest), 'PX', format('%d', ttl), 'NX')
        else
          reply = redis.pcall('SET', key, format('%d', rest), 'PX', format('%d', ttl))
        end
        if not reply or type(reply) == 'table' and reply.err then level = -1 end
      end
    end
    if level > exact then level = exact end
    if each then
      found[i] = level
    elseif level >= 0 then
      return level
    end -- else decide.lua says what is wrong
  end
  if each then return found end
end

-- size is how many integers the reply has of each bucket.
local size = 1

-- drainOf returns the units that flow back per millisecond.
local function drainOf(w) return w.period end

-- read finds the level, and how long a block lasts.
local function read(w)
  w.drain, w.level, w.block, w.used, w.left = w.period, 0, 0, 0, 0
  local value = call('GET', w.key)
  if not value then return end
  local ttl = call('PTTL', w.key)
  if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  if ttl <= 0 then return end
  local sign, rest, before = match(value, '^(%-?)(%d+) ?(%d*)$')
  if not rest then error('the value is not that of a bucket') end
  if before ~= '' then w.block = max(0, ttl - before) end
  if sign == '-' then rest = rest - 1 end
  w.ttl, w.rest = ttl, rest + 0
  w.level = ttl * w.drain
  if w.rest < w.drain then w.level = w.level - w.rest end
  w.used = w.level
end

-- most returns the level up to which debt may go.
local function most(w) return min(2 * w.limit, exact - w.drain) end

-- blocked returns the lowest level from which no token is to be had for so many milliseconds.
local function blocked(w, ms) return w.limit - w.cost + ms * w.drain end

-- found returns the level to decide by.
local function found(w)
  if verb == 'take' and w.block > 0 then w.level = max(w.level, blocked(w, w.block)) end
  return min(w.level, exact)
end

-- Always SET here: where memory is full the first one fails, and nothing is charged.
local function set(w)
  local text = w.block > 0 and format('%d %d', w.rest, w.ttl - w.block) or format('%d', w.rest)
  call('SET', w.key, text, 'PX', format('%d', w.ttl))
end

local function write(w, level)
  w.ttl = ceil(level / w.drain)
  w.rest = w.ttl * w.drain - level
  set(w)
end

local function take(w, tokens) write(w, w.level + tokens * w.cost) end

-- loose returns how many units may be given back: none of a block.
local function loose(w)
  if w.level >= exact then return 0 end
  return w.level - (w.block > 0 and min(w.level, blocked(w, w.block)) or 0)
end

local function give(w, units)
  if w.level == 0 or w.level >= exact then return end
  local level = w.level - min(units, loose(w))
  if level > 0 then write(w, level) else call('DEL', w.key) end
end

local giveMarked = give -- a token is like any other

local function block(w, ms)
  w.block = max(w.block, ms)
  local least = blocked(w, ms)
  if w.level < least then
    write(w, least)
  else
    set(w)
  end
end

-- What follows tells of windows alone.
local function mark() return 0 end
local function leaves() return 0 end
local function expire() end
