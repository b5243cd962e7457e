-- The token bucket: one decision on the buckets of one key, all charged or none; or many decisions,
-- each on a bucket of its own.
--
-- KEYS[i]        bucket i, i = 1 … k; all in one hash slot
-- ARGV[1]        the verb: take; give or return, which are the same here; block; reset; or each, to take from each bucket
--                for itself
-- ARGV[2]        take and each: tokens of a charge; give and return: tokens to give back; block: milliseconds
-- ARGV[3]        take: charges, of which as many are made as fit, 0 looks; each: 1 if each bucket is charged once
-- ARGV[3i + 1]   drain of bucket i: units that flow back per millisecond
-- ARGV[3i + 2]   cost of bucket i: units that one token weighs
-- ARGV[3i + 3]   capacity of bucket i: units it holds
--                With each, ARGV[4], ARGV[5] and ARGV[6] are those of every bucket, and no key comes twice
-- ARGV[6 + i]    each: charges of bucket i; absent if ARGV[3] is 1
--
-- Reply: for each bucket
--   1. the level found: units missing from a full bucket; take: of a blocked one, at least as many as until the block ends.
--      A single integer when k is 1, but not with each. With each, -1 where nothing was done: that bucket is to be asked
--      for alone, and tells why.
-- The caller derives what was taken from the levels, by the arithmetic used here.
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
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

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
    end -- else the way of several buckets says what is wrong
  end
  if each then return found end
  charges = ARGV[3] + 0
end

local levels, ttls, rests, blocks = {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local level, value, ttl, block = 0, call('GET', key), 0, 0
  if value then
    ttl = call('PTTL', key)
    if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  end
  if ttl > 0 then
    local sign, rest, before = match(value, '^(%-?)(%d+) ?(%d*)$')
    if not rest then error('the value is not that of a bucket') end
    if before ~= '' then block = max(0, ttl - before) end
    if sign == '-' then rest = rest - 1 end
    local drain = ARGV[3 * i + 1] + 0
    rest = rest + 0
    level = ttl * drain
    if rest < drain then level = level - rest end
    ttls[i], rests[i] = ttl, rest
  end
  local capacity = ARGV[3 * i + 3] + 0
  if verb == 'take' and block > 0 then level = max(level, capacity - ARGV[3 * i + 2] + block * ARGV[3 * i + 1]) end
  levels[i], blocks[i] = min(level, exact), block
  if charges > 0 then
    local charge = ARGV[2] * ARGV[3 * i + 2]
    if level + charges * charge > capacity then
      charges = max(0, floor((capacity - level) / charge))
    end
  end
end

-- Always SET here: where memory is full the first one fails, and nothing is charged.
local function set(key, rest, ttl, block)
  if block > 0 then
    call('SET', key, format('%d %d', rest, ttl - block), 'PX', format('%d', ttl))
  else
    call('SET', key, format('%d', rest), 'PX', format('%d', ttl))
  end
end

local function write(key, drain, level, block)
  local ttl = ceil(level / drain)
  set(key, ttl * drain - level, ttl, block)
end

for i, key in ipairs(KEYS) do
  local drain, cost, capacity = ARGV[3 * i + 1] + 0, ARGV[3 * i + 2] + 0, ARGV[3 * i + 3] + 0
  local level, block = levels[i], blocks[i]
  if verb == 'take' then
    if charges > 0 then write(key, drain, level + charges * ARGV[2] * cost, 0) end -- no block holds, or nothing would fit
  elseif verb == 'reset' then
    call('DEL', key)
  elseif verb == 'block' then
    local ms = ARGV[2] + 0
    local least = capacity - cost + ms * drain
    block = max(block, ms)
    if level < least then
      write(key, drain, least, block)
    else -- as it is: level may be cut to exact
      set(key, rests[i], ttls[i], block)
    end
  elseif level > 0 and level < exact then -- give and return
    local least = block > 0 and min(level, capacity - cost + block * drain) or 0
    level = max(level - ARGV[2] * cost, least)
    if level > 0 then
      write(key, drain, level, block)
    else
      call('DEL', key)
    end
  end
end
return #KEYS == 1 and levels[1] or levels
