-- The token bucket: one decision on the buckets of one key, all charged or none.
--
-- KEYS[i]        bucket i, i = 1 … k; all in one hash slot
-- ARGV[1]        charges: > 0 take as many of them as fit, 0 look, < 0 give so many back
-- ARGV[3i - 1]   drain of bucket i: units that flow back per millisecond
-- ARGV[3i]       charge of bucket i: units that one charge weighs; when giving back, one token;
--                when blocking, the level to raise the bucket to
-- ARGV[3i + 1]   capacity of bucket i: units it holds
-- ARGV[3k + 2]   the word block, or absent
--
-- Reply: for each bucket
--   1. the level found: units missing from a full bucket. A single integer when k is 1.
-- The caller derives what was taken from the levels, by the arithmetic used here.
--
-- State: a bucket is one string key.
--   TTL    milliseconds until it is full: ceil(level / drain)
--   value  what the rounding left over: TTL × drain - level, in 0 … drain - 1;
--          of a blocked bucket, minus one minus that
-- A full bucket has no key, so expiry loses nothing, and no clock is read but Redis' own.
--
-- Portable: integers below 2^53 only, no TIME, every key in KEYS.

local charges = ARGV[1] + 0
local exact = 9007199254740991 -- 2^53 - 1, the largest level told

-- One bucket to take from is nearly every call: in line, without a table or a function.
if charges > 0 and #KEYS == 1 then
  local key, drain, charge, capacity = KEYS[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
  local call = redis.call
  local level, value = 0, call('GET', key)
  if value then
    local ttl = call('PTTL', key)
    if ttl > 0 then
      level = ttl * drain
      if value ~= '0' then
        local rest = value + 0
        if rest < 0 then rest = -1 - rest end
        if rest < drain then level = level - rest end -- else it is another limit's
      end
    else
      if ttl == -1 then error('the key has no expiry, so it is no bucket') end
      value = false
    end
  end

  local after = level + charges * charge
  if after > capacity then
    charges = math.floor((capacity - level) / charge)
    after = level + charges * charge
  end

  if charges > 0 then
    local ttl = math.ceil(after / drain)
    local rest = ttl * drain - after
    if rest == 0 and value == '0' then
      call('PEXPIRE', key, string.format('%d', ttl))
    else
      call('SET', key, string.format('%d', rest), 'PX', string.format('%d', ttl))
    end
  end
  return level < exact and level or exact
end

local levels, ttls, rests, blocked = {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local level, value, ttl = 0, redis.call('GET', key), 0
  if value then
    ttl = redis.call('PTTL', key)
    if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  end
  if ttl > 0 then
    local drain, rest = ARGV[3 * i - 1] + 0, value + 0
    if rest < 0 then
      blocked[i] = true
      rest = -1 - rest
    end
    level = ttl * drain
    if rest < drain then level = level - rest end
    ttls[i], rests[i] = ttl, rest
  end
  levels[i] = level < exact and level or exact
  if charges > 0 then
    local charge, capacity = ARGV[3 * i] + 0, ARGV[3 * i + 1] + 0
    if level + charges * charge > capacity then
      charges = math.max(0, math.floor((capacity - level) / charge))
    end
  end
end

-- Always SET here: where memory is full the first one fails, and nothing is charged.
local function write(key, drain, level, block)
  local ttl = math.ceil(level / drain)
  local rest = ttl * drain - level
  if block then rest = -1 - rest end
  redis.call('SET', key, string.format('%d', rest), 'PX', string.format('%d', ttl))
end

local block = ARGV[3 * #KEYS + 2] == 'block'
for i, key in ipairs(KEYS) do
  local drain, charge, capacity = ARGV[3 * i - 1] + 0, ARGV[3 * i] + 0, ARGV[3 * i + 1] + 0
  local level = levels[i]
  if block and level >= charge then -- as it is, but marked: level may be cut to exact
    redis.call('SET', key, string.format('%d', -1 - rests[i]), 'PX', string.format('%d', ttls[i]))
  elseif block then
    write(key, drain, charge, true)
  elseif charges > 0 then
    write(key, drain, level + charges * charge)
  elseif charges < 0 and level > 0 and level < exact and not (blocked[i] and level > capacity - charge) then
    level = level + charges * charge
    if level > 0 then
      write(key, drain, level)
    else
      redis.call('DEL', key)
    end
  end
end
return #KEYS == 1 and levels[1] or levels
