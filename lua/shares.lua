-- Tenants that share token buckets: how the scripts read and change what each holds. bucket.Shares
-- has the rule. lua/tenants.lua follows. lua/fast/tenants.lua has the same code inline.
--
-- Tenants' arguments come after all others, and their keys after all other keys.
--
-- KEYS[#KEYS - 2s + 2i - 1]  what is held of bucket i, i = 1 … s; the buckets come first in KEYS
-- KEYS[#KEYS - 2s + 2i]      the bounds
-- KEYS[#KEYS - 3s + i]       for a return with records, and a reset: when the tenant was reset last
-- ARGV[…]             for each tenant its name, which begins with a colon; then for each tenant 1024 ×
--                     its charges + its weight, which is 1 … 1000. ARGV[3] is the sum of the charges
-- ARGV[last - 3]      if there are several tenants, the runs of charges in order, as text: for each the
--                     tenant's number and how many, each followed by a space; else empty
-- ARGV[last - 2]      1 if a ban or slots come with the buckets, else 0
-- ARGV[last - 1]      number of tenants
-- ARGV[last]          s
-- For one tenant that takes from one bucket, and nothing else, ARGV ends after its weight.
--
-- The reply ends with these integers, for each of the s buckets, as they were before the call
--   the sum of each tenant's weight × finish, and the sum of the weights
--   for each tenant 1 + 1024 × finish + the weight by which it holds something; 0 if it holds nothing
--   then, unless the fast path found that all charges fit in any order
--     for each tenant the milliseconds until one more charge fits its share after this call, 0 if it
--     does or if its last charges in this call were made
--     for each tenant the milliseconds for which it is blocked; absent from the fast path
--
-- State: two keys for each bucket.
--   what is held, a hash
--     :name   1024 × the tenant's finish + its weight. The tenant without a name, of weight 1, holds
--             what no tenant has charged
--     t       the totals: the sum of each tenant's weight × finish, or more if the bucket was also
--             charged without a tenant; the sum of the weights; a number that is at most the least
--             finish, or 0 if one tenant holds the whole sum and has no bound; the milliseconds by
--             which the bucket may still fill before these keys would expire too early; and b if
--             a tenant is blocked
--   bounds, a sorted set
--     :name   a number that is at most the finish of the tenant, which is also in the hash
--     b       if a tenant is blocked, -1 - the time at which the key expires
--     b:name  if it is blocked, -1 - the time at which its block ends
--   TTL       of both: milliseconds until the bucket is full, and no tenant is blocked, or longer
--   a tenant's reset, a string
--     value     the milliseconds for which it is noted, beginning with the reset; so TTL has the time
-- Times are milliseconds since the first of the blocks; the TTL gives the current time. When the
-- bucket is full, no tenant holds anything, and what the hash has is void. So expiry loses nothing,
-- unless the bucket is also charged without a tenant.
--
-- A charge that raises a finish leaves the bound as it is. When the bound has passed, it is set to
-- the finish, or the tenant is removed if that has passed too.
--
-- Numbers are integers below 2^53.

local shared, tenants, runs, hasGuards, tenantsAt = 1, 1, '', false, 6
if not one then
  shared, tenants, runs = ARGV[last] + 0, ARGV[last - 1] + 0, ARGV[last - 3]
  hasGuards = ARGV[last - 2] == '1'
  tenantsAt = last - 4 - 2 * tenants
end
local names, weights = {}, {}
for j = 1, tenants do
  names[j], weights[j] = ARGV[tenantsAt + j], ARGV[tenantsAt + tenants + j] % 1024
end

-- passShares looks at the tenants whose bound has passed at a level of q parts. Those whose finish
-- has passed are gone. If they are many, the next calls look at the others.
local function passShares(s, q)
  local behind, from, seen, more = {}, '0', 0, true -- behind their finishes, but not their bounds
  local v = (s.sum - q) / s.weights
  while more do
    local to, new = format('%d', floor(v)), 0
    repeat
      local list = call('ZRANGEBYSCORE', s.bounds, from, to, 'LIMIT', new, 128)
      local scores = list[1] and call('HMGET', s.key, unpack(list)) or {}
      for at, name in ipairs(list) do behind[name] = (scores[at] or 0) + 0 end
      new = new + #list
    until #list < 128 or seen + new >= maxGone
    seen, more = seen + new, false
    for name, score in pairs(behind) do
      local finish = floor(score / 1024)
      if finish <= v then
        local weight = score - 1024 * finish
        s.gone[#s.gone + 1], s.isGone[name], behind[name] = name, true, nil
        s.sum, s.weights = s.sum - weight * finish, s.weights - weight
        if s.weights <= 0 then return end
        v, more = (s.sum - q) / s.weights, true
      end
    end
    from = '(' .. to
    if seen >= maxGone then break end
  end
  for name, score in pairs(behind) do s.raised[name] = floor(score / 1024) end
  if seen < maxGone and not next(behind) and not call('ZRANGEBYSCORE', s.bounds, from, '+inf', 'LIMIT', 0, 1)[1] then
    s.weights = 0
  end
end

-- readShares reads what the tenants hold of bucket i at a level.
local function readShares(i, level)
  local cost, at = ARGV[3 * i + 2] + 0, #KEYS - 2 * shared + 2 * i
  local s = {
    key = KEYS[at - 1], bounds = KEYS[at], drain = ARGV[3 * i + 1] + 0, cost = cost,
    capacity = ARGV[3 * i + 3] * parts / cost, most = floor(ARGV[3 * i + 3] / cost),
    fill = ceil(ARGV[3 * i + 3] / ARGV[3 * i + 1]), sum = 0, weights = 0, spare = 0, finish = {}, held = {},
    block = {}, gone = {}, isGone = {}, raised = {}
  }
  local known, q = call('HGET', s.key, 't'), level * parts / cost
  local sum, weights, least, spare, blocks
  if known then
    sum, weights, least, spare, blocks = match(known, '^(%d+) (%d+) (%d+) (%d+) ?(b?)$')
    if not sum then error('the value is not that of totals') end
  end
  if known and level > 0 and weights + 0 > 0 then
    s.sum, s.weights, s.spare = sum + 0, weights + 0, spare + 0
    if s.sum < q then s.sum = ceil(q) end -- what no tenant has charged
    s.alone = least == '0'
    if not s.alone then passShares(s, q) end
    local scores = tenants > 0 and call('HMGET', s.key, unpack(names)) or {}
    for j = 1, tenants do
      local score = scores[j]
      if score and s.weights > 0 and not s.isGone[names[j]] then
        s.finish[j] = floor(score / 1024)
        s.held[j] = score - 1024 * s.finish[j]
      end
    end
  end
  if s.weights <= 0 then
    s.void = true
    s.sum, s.weights = min(maxFinish - 1, floor(q + 0.5)), 1
    if s.sum == 0 then s.weights = 0 else s.unnamed = s.sum end
  end
  local stop = blocks == 'b' and call('ZSCORE', s.bounds, 'b')
  if stop then
    s.ttl = call('PTTL', s.bounds)
    s.stop, s.now = -1 - stop, -1 - stop - s.ttl
    s.lasts = s.stop - s.now
    for j = 1, tenants do
      local ends = call('ZSCORE', s.bounds, 'b' .. names[j])
      s.block[j] = ends and max(0, -1 - ends - s.now)
    end
  end
  s.reply = {s.sum, s.weights}
  for j = 1, tenants do
    s.reply[2 + j] = s.finish[j] and 1 + 1024 * s.finish[j] + s.held[j] or 0
    s.reply[2 + tenants + j], s.reply[2 + 2 * tenants + j] = 0, s.block[j] or 0
  end
  return s
end

-- holds returns how many parts of the level q a tenant has charged.
local function holds(s, j, q)
  local finish = s.finish[j]
  return finish and max(0, s.held[j] * (finish - (s.sum - q) / s.weights)) or 0
end

-- fitShare returns how many charges of n tokens fit a tenant's share.
local function fitShare(s, j, level, charges, n)
  if (s.block[j] or 0) > 0 then return 0 end
  local w, c, q = weights[j], min(n, s.most) * parts, level * parts / s.cost
  local own = holds(s, j, q)
  local fits = floor((w * (s.capacity - q) - own + slack * w + w * c) / ((1 + w) * c))
  if own == 0 then fits = max(1, fits) end
  return max(0, min(charges, fits))
end

-- addShare adds the change of a bucket's level to what a tenant holds, at least to nothing.
local function addShare(s, j, before, after)
  local from, to = before * parts / s.cost, after * parts / s.cost
  if s.weights > 0 and s.sum < from then s.sum = ceil(from) end
  local v = s.weights > 0 and (s.sum - from) / s.weights or 0
  local own, w, finish = holds(s, j, from), weights[j], s.finish[j]
  if finish and to < from then w = s.held[j] end -- only a charge gives it another weight
  if finish then
    s.sum, s.weights = s.sum - s.held[j] * finish, s.weights - s.held[j]
  end
  s.finish[j], s.changed = nil, s.changed or {}
  s.changed[j] = true
  own = own + (to - from)
  finish = floor(v + own / w + 0.5)
  if own < slack * w then return end
  if finish >= maxFinish or s.sum + finish * w > exact - 1 then -- forget who holds what
    s.sum, s.weights, s.finish, s.changed = min(maxFinish - 1, floor(to + 0.5)), 1, {}, {}
    s.void, s.unnamed = true, s.sum
    return
  end
  s.finish[j], s.held[j] = finish, w
  s.sum, s.weights = s.sum + finish * w, s.weights + w
end

-- dropBlocks removes the blocks that have ended, and reports whether others are left.
local function dropBlocks(s)
  local first = call('ZREVRANGEBYSCORE', s.bounds, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[1] and match(first[1], '^b:') and -1 - first[2] > s.now then return true end
  local list = call('ZREVRANGEBYSCORE', s.bounds, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, maxWalk)
  local over, left = {}, #list == 2 * maxWalk
  for at = 1, #list, 2 do -- those that end first come first
    if match(list[at], '^b:') then
      if -1 - list[at + 1] <= s.now then over[#over + 1] = list[at] else left = true end
    end
  end
  if not left then over[#over + 1] = 'b' end
  if #over > 0 then call('ZREM', s.bounds, unpack(over)) end
  return left
end

-- writeTotals writes the totals.
local function writeTotals(s, blocked)
  local least = call('ZRANGEBYSCORE', s.bounds, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  call('HSET', s.key, 't', format('%d %d %d %d', s.sum, s.weights, least or 0, s.spare) .. (blocked and ' b' or ''))
end

-- writeExpiry writes when the keys expire: when the bucket is full and blocks have ended, or later.
local function writeExpiry(s, ttl, blocked)
  local lasts = max(1, ttl + s.fill)
  if blocked and s.lasts and s.lasts >= max(ttl, s.stop - s.now) then
    if s.void then call('PEXPIRE', s.key, format('%d', s.lasts)) end
    return -- each change of the bounds' expiry moves the clock a little
  elseif blocked then
    lasts = max(lasts, s.stop - s.now)
    call('ZADD', s.bounds, format('%d', -1 - s.now - lasts), 'b')
  end
  lasts = expiry(s.bounds, s.ttl or 0, lasts)
  call('PEXPIRE', s.bounds, lasts)
  call('PEXPIRE', s.key, lasts)
end

-- writePassed writes what was found of the tenants whose bound has passed.
local function writePassed(s)
  for at = 1, #s.gone, 512 do
    local last = min(#s.gone, at + 511)
    call('ZREM', s.bounds, unpack(s.gone, at, last))
    call('HDEL', s.key, unpack(s.gone, at, last))
  end
  for name, finish in pairs(s.raised) do call('ZADD', s.bounds, format('%d', finish), name) end
  s.gone, s.raised = {}, {}
end

-- writeShares writes what has changed. The bucket is full in ttl milliseconds.
local function writeShares(s, ttl)
  local blocked = s.now and dropBlocks(s)
  if ttl == 0 and not blocked then
    call('UNLINK', s.key, s.bounds)
    return
  end
  if s.void and blocked then
    call('UNLINK', s.key)
    call('ZREMRANGEBYSCORE', s.bounds, '0', '+inf')
  elseif s.void then
    call('UNLINK', s.key, s.bounds)
  elseif s.alone then
    for _, name in ipairs(call('HKEYS', s.key)) do
      if name ~= 't' then call('ZADD', s.bounds, '1', name) end
    end
  else
    writePassed(s)
  end
  if s.unnamed then
    call('HSET', s.key, ':', format('%d', 1024 * s.unnamed + 1))
    call('ZADD', s.bounds, format('%d', s.unnamed), ':')
  end
  for j in pairs(s.changed) do
    local finish = s.finish[j]
    if finish then
      call('HSET', s.key, names[j], format('%d', 1024 * finish + s.held[j]))
      call('ZADD', s.bounds, format('%d', max(1, finish)), names[j])
    else
      call('HDEL', s.key, names[j])
      call('ZREM', s.bounds, names[j])
    end
  end
  s.spare = s.fill
  writeTotals(s, blocked)
  writeExpiry(s, ttl, blocked)
end

-- removePassed removes the tenants whose finish has passed, though nothing was charged: else each
-- denial would find them again.
local function removePassed(s)
  if s.void or not s.gone[1] and not next(s.raised) then return end
  writePassed(s)
  writeTotals(s, s.now)
end

-- sortedShares returns the tenants in the order of their finishes: of each 1024 × the finish + its
-- weight.
local function sortedShares(s)
  if not s.sorted then
    local list = call('ZRANGEBYSCORE', s.bounds, '0', '+inf', 'LIMIT', 0, maxWalk)
    list = list[1] and call('HMGET', s.key, unpack(list)) or list
    for at = 1, #list do list[at] = (list[at] or 0) + 0 end
    table.sort(list)
    s.sorted = list
  end
  return s.sorted
end

-- waitShare returns in how many milliseconds a charge of n tokens fits a tenant's share, if nobody
-- charges the bucket meanwhile.
local function waitShare(s, j, level, n)
  if fitShare(s, j, level, 1, n) == 1 then return 0 end
  local finish, held, w, block = s.finish[j], s.held[j], weights[j], s.block[j] or 0
  if not finish then return block end
  local sum, all, c, fits = s.sum, s.weights, min(n, s.most) * parts, nil
  local function fit()
    fits = (w * s.capacity + slack * w - 0.25 - c - held * finish + held * sum / all) / (w + held / all)
  end
  fit()
  for _, score in ipairs(sortedShares(s)) do
    local other = floor(score / 1024)
    local weight = score - 1024 * other
    local lasts = sum - all * other -- the level down to which the same tenants hold something
    if fits >= lasts then break end
    if other == finish then
      fits = lasts -- then it holds nothing
      break
    end
    sum, all = sum - weight * other, all - weight
    fit()
  end
  local units = floor(max(0, fits) * s.cost / parts)
  return max(1, block, ceil((level - units) / s.drain))
end

-- appendShares appends the integers of the tenants to a reply.
local function appendShares(reply, s)
  for _, number in ipairs(s.reply) do reply[#reply + 1] = number end
end
