-- One token bucket that tenants share: charges of one tenant or several, in order, or another change of one.
-- bucket.Shares has the rule. tenants.lua precedes it. Nearly every call on a shared bucket is a take, so
-- the code is inline: functions that share so many variables would cost Redis half as much again.
--
-- KEYS[1]            the bucket
-- KEYS[2]            its record, if ARGV[3] says so, see decide.lua
-- KEYS[last - 1]     what is held of the bucket
-- KEYS[last]         the bounds
-- ARGV[1 … 6]        see decide.lua; charges of a take are those of all tenants. A block is not supported
-- Next               see decide.lua
-- Next               for each tenant its name, which begins with a colon. A change has one; without a
--                    tenant, a reset is of the whole bucket, and a take only looks
-- ARGV[last]         if there are tenants, bytes, as each further argument costs Redis more: for each its
--                    weight, 1 … 1000, and its charges, two bytes each, the high one first. If there are
--                    several, then the runs of charges in order: for each a byte, which is one less than
--                    the tenant's number, and two bytes, how many. A lone tenant has all charges
--
-- Reply: a list. Of a change, and of a take first, the level found. Then, as they were before the call
--   for each tenant 1 + 1024 × finish + the weight by which it holds something; 0 if it holds nothing
--   the sum of each tenant's weight × finish, and the sum of the weights
--   unless all charges were made, for each tenant the milliseconds until one more charge fits its share
--     after this call, 0 if it does or if its last charges in this call were made
-- Of a charge and a return all is as it is after the call.
--
-- State: beside the bucket (see script.lua) two keys.
--   what is held, a hash
--     :name   1024 × the tenant's finish + its weight. The tenant without a name, of weight 1, holds
--             what no tenant has charged
--     t       the totals: the sum of each tenant's weight × finish, or more if the bucket was also
--             charged without a tenant; the sum of the weights; a number that is at most the least
--             finish, or 0 if one tenant holds the whole sum and has no bound; the milliseconds by
--             which the bucket may still fill before these keys would expire too early
--   bounds, a sorted set
--     :name   a number that is at most the finish of the tenant, which is also in the hash
--   TTL       of both: milliseconds until the bucket is full, or longer. If there are many tenants, a
--             minute more for the hash, and another for the bounds
-- When the bucket is full, no tenant holds anything, and what the hash has is void. So expiry loses
-- nothing, unless the bucket is also charged without a tenant. Without the hash the bounds are void.
-- Redis stands still while it frees what many tenants held, unless a call removes both before they
-- expire: that is in the background. If none comes, one expires after the other.
--
-- A charge that raises a finish leaves the bound as it is. When the bound has passed, it is set to
-- the finish, or the tenant is removed if that has passed too.
--
-- Numbers are integers below 2^53.

local takes, last = ARGV[1] == 'take', #ARGV
local bucket, key, bounds = KEYS[1], KEYS[#KEYS - 1], KEYS[#KEYS]
local drain, cost, most = ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
local tenants, at, byte = 1, last - 2, string.byte -- the tenants come after argument at
if takes then tenants, at = max(0, last - 7), 6 end

-- Read the bucket.
local level, before = 0, 0 -- its TTL
local value = call('GET', bucket)
if value then
  local rest, ttl = tonumber(value) or tonumber(match(value, '^(%d+) %d+$')), call('PTTL', bucket)
  if ttl == -1 then error('the key has no expiry, so it is no bucket') end
  if not rest or rest < 0 then error('the value is not that of a bucket') end
  if ttl > 0 then
    level, before = ttl * drain, ttl
    if rest < drain then level = level - rest end
    if level > exact then level = exact end
  end
end

-- Read what the tenants hold at this level, which is q parts. v is the virtual time.
local reply = call('HMGET', key, 't', unpack(ARGV, at + 1, at + tenants))
local known, sum, weights, least, spare, v = reply[1], 0, 0, 0, 0, 0
local q, void, gone, raised, excess, unnamed = level * parts / cost, true, nil, nil, false, nil
if known then
  sum, weights, least, spare = match(known, '^(%d+) (%d+) (%d+) (%d+)$')
  if not sum then error('the value is not that of totals') end
  sum, weights, least, spare = sum + 0, weights + 0, least + 0, spare + 0
end
if level > 0 and weights > 0 then
  excess, void = sum < q, false -- what no tenant has charged
  if excess then sum = ceil(q) end
  v = (sum - q) / weights

  -- Look at the tenants whose bound has passed. Those whose finish has passed too are gone, and the virtual time
  -- goes on with each. If they are many, the next calls look at the others.
  if least > 0 and least <= v then
    local behind, from, seen = {}, '0', 0
    gone, raised = {}, {}
    repeat
      local to, page, again = format('%d', floor(v)), 0, nil
      repeat
        local list = call('ZRANGEBYSCORE', bounds, from, to, 'LIMIT', page, minGone)
        local found = list[1] and call('HMGET', key, unpack(list)) or list
        for i, name in ipairs(list) do behind[name] = (found[i] or 0) + 0 end
        page = page + #list
      until #list < minGone or seen + page >= maxGone
      repeat
        again = false
        for name, score in pairs(behind) do
          local w = score % 1024
          local f = floor(score / 1024)
          if f <= v and weights > 0 then
            sum, weights, behind[name], gone[name], again = sum - w * f, weights - w, nil, true, true
            gone[#gone + 1] = name
            if weights > 0 then v = (sum - q) / weights end
          end
        end
      until not again
      seen, from = seen + page, '(' .. to
      least = call('ZRANGEBYSCORE', bounds, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      least = least and least + 0 or maxFinish
    until least > v or least == maxFinish or seen >= maxGone or weights <= 0
    for name, score in pairs(behind) do
      local f = floor(score / 1024)
      raised[#raised + 1], raised[#raised + 2] = format('%d', f), name
      if f < least then least = f end
    end
    if seen >= maxGone then
      least = 1 -- more have passed
    elseif least == maxFinish then
      weights = 0
    end
    if not gone[1] then gone = nil end
    if not raised[1] then raised = nil end
  end
end
if void or weights <= 0 then
  sum, weights, least, v, void, reply = min(maxFinish - 1, floor(q + 0.5)), 0, maxFinish, 0, true, {}
  if sum > 0 then
    unnamed, weights, least = sum, 1, sum
    if sum < q then sum = ceil(q) end
    v = sum - q
  end
end

-- If all charges fit, their order does not matter.
local n, charges, capacity = ARGV[2] + 0, ARGV[3] + 0, most * parts / cost
local c = min(n, floor(most / cost)) * parts -- by which a charge must fit
local charge, after = n * cost, level + n * cost * charges
local fits, finish, held, own, changed, denied = takes and charges > 0 and after <= most, nil, nil, nil, nil, nil
local sums, all, first, free = sum, weights, least, capacity - after * parts / cost
local values, new, size, to = {}, nil, 0, 0 -- of the hash, and bounds
reply[1] = level
for j = 1, tenants do
  local score, name, f, w = reply[1 + j], ARGV[at + j], nil, nil
  if score and not (gone and gone[name]) then
    score = score + 0
    w = score % 1024
    f = (score - w) / 1024
    reply[1 + j] = score + 1
  else
    reply[1 + j] = 0
  end
  if fits then
    local high, low, more, less = byte(ARGV[last], 4 * j - 3, 4 * j)
    local weight, wanted, holds = 256 * high + low, tenants > 1 and 256 * more + less or charges, 0
    if f and f > v then holds = w * (f - v) end
    holds = holds + wanted * n * parts
    local ends = floor(v + holds / weight + 0.5)
    if holds > weight * (free - wanted) or ends >= maxFinish then -- with room for rounding
      fits = false
    elseif wanted > 0 then
      if f then sums, all = sums - w * f, all - w end
      if not f or ends < f then
        new = new or {}
        new[to + 1], new[to + 2], to = format('%d', ends), name, to + 2
        if ends < first then first = ends end
      end
      sums, all = sums + ends * weight, all + weight
      values[size + 1], values[size + 2], size = name, format('%d', 1024 * ends + weight), size + 2
    end
  end
end
reply[2 + tenants], reply[3 + tenants] = sum, weights
local found = level
if fits and sums < exact then
  sum, weights, least, level = sums, all, first, after
else -- make the charges that fit, in order; or the other change
  values, new, size, to, finish, held, own, changed = {}, nil, 0, 0, {}, {}, {}, {}
  denied = {} -- the level at which a tenant was
  for j = 1, tenants do
    local score, high, low = reply[1 + j] - 1, byte(ARGV[last], 4 * j - 3, 4 * j - 2)
    own[j] = 256 * high + low
    if score >= 0 then
      held[j] = score % 1024
      finish[j] = (score - held[j]) / 1024
    end
  end
  for run = 1, tenants > 1 and (#ARGV[last] - 4 * tenants) / 3 or tenants do
    local j, wanted = 1, charges
    if tenants > 1 then
      local index, more, less = byte(ARGV[last], 4 * tenants + 3 * run - 2, 4 * tenants + 3 * run)
      j, wanted = index + 1, 256 * more + less
    end
    local w, f, holds, after = own[j], finish[j], 0, level
    if f then holds = max(0, held[j] * (f - v)) end
    if not takes then
      after = change(min(level, floor(holds * cost / parts + 0.5)))
      if f and after < level then w = held[j] end -- only a charge gives it another weight
    elseif denied[j] ~= level then -- else it is denied again
      local made = wanted
      if level + made * charge > most then made = floor((most - level) / charge) end
      if made > 0 then
        local fit = floor((w * (capacity - q) - holds + slack * w + w * c) / ((1 + w) * c))
        if holds == 0 and fit < 1 then fit = 1 end
        if fit < made then made = max(0, fit) end
      end
      if made > 0 then after = level + made * charge else made = 0 end
      denied[j] = (made < wanted or charges == 0) and after
    end
    if after ~= level then
      if weights > 0 and sum < q then -- by rounding
        sum, v, excess = ceil(q), (ceil(q) - q) / weights, true
        if f then holds = max(0, held[j] * (f - v)) end
      end
      if f then sum, weights = sum - held[j] * f, weights - held[j] end
      level, holds = after, holds + (after * parts / cost - q)
      q = level * parts / cost
      f = floor(v + holds / w + 0.5)
      finish[j], changed[j] = nil, true
      if holds < slack * w then
        f = nil -- that is nothing
      elseif f >= maxFinish or sum + f * w > exact - 1 then -- forget who holds what
        sum, weights, finish, changed = min(maxFinish - 1, floor(q + 0.5)), 1, {}, {}
        least, unnamed, void = sum, sum, true
      else
        finish[j], held[j], sum, weights = f, w, sum + f * w, weights + w
        if f < least then least = f end
      end
      if weights > 0 then v = (sum - q) / weights end
    end
  end
  for j in pairs(changed) do
    local f, name, score = finish[j], ARGV[at + j], unnamed and 0 or reply[1 + j] -- 0 is nothing
    if f then
      if score == 0 or 1024 * f < score - 1 then
        new = new or {}
        new[to + 1], new[to + 2], to = format('%d', f), name, to + 2
      end
      values[size + 1], values[size + 2], size = name, format('%d', 1024 * f + held[j]), size + 2
    elseif score > 0 then
      gone = gone or {}
      gone[#gone + 1] = name
    end
  end
end

-- Write.
local ttl, renew = before, false
if level ~= found then
  ttl = ceil(level / drain)
  if takes then call('SET', bucket, format('%d', ttl * drain - level), 'PX', expiry(bucket, before, ttl)) end
  spare = spare - max(0, ttl - before)
  renew = void or spare < 0 or weights > maxGone and reply[3 + tenants] <= maxGone
end
if level ~= found and level == 0 then
  call('UNLINK', key, bounds)
elseif level ~= found or (gone or raised) and not void then
  if void then
    call('UNLINK', key, bounds)
    if unnamed then
      new = new or {}
      new[to + 1], new[to + 2], to = format('%d', unnamed), ':', to + 2
      values[size + 1], values[size + 2], size = ':', format('%d', 1024 * unnamed + 1), size + 2
    end
    if to == 2 and not excess then new, least = nil, 0 end -- it is alone
  else
    if least == 0 and (new or excess) then -- no longer alone
      new = new or {}
      for _, name in ipairs(call('HKEYS', key)) do
        if name ~= 't' then new[to + 1], new[to + 2], to = '1', name, to + 2 end
      end
      least, renew = 1, true
    end
    if gone then
      call('ZREM', bounds, unpack(gone))
      call('HDEL', key, unpack(gone))
    end
    if raised then call('ZADD', bounds, unpack(raised)) end
  end
  if new then
    call('ZADD', bounds, unpack(new))
    renew = renew or call('PTTL', bounds) == -1 -- the others were evicted
  end
  if renew then spare = ceil(most / drain) end
  call('HSET', key, 't', format('%d %d %d %d', sum, weights, least, spare), unpack(values))
  if renew then
    local lasts, more = ttl + spare, weights > maxGone and 60000 or 0
    call('PEXPIRE', key, format('%d', lasts + more))
    if least > 0 then call('PEXPIRE', bounds, format('%d', lasts + 2 * more)) end
  end
end
if ARGV[1] == 'charge' or ARGV[1] == 'return' then
  return {level, finish[1] and 1 + 1024 * finish[1] + held[1] or 0, sum, weights}
end
if not takes or not denied then return reply end

-- Find when a charge fits the share of those that were denied, if nobody charges the bucket meanwhile.
local list, totals, alls
for j = 1, tenants do
  local w, f, h = own[j], finish[j], held[j]
  local holds = f and max(0, h * (f - v)) or 0
  reply[3 + tenants + j] = 0
  if denied[j] and holds > 0 and floor((w * (capacity - q) - holds + slack * w + w * c) / ((1 + w) * c)) < 1 then
    local function fitsAt(total, all) -- the level at which it fits
      return (w * capacity + slack * w - 0.25 - c - h * f + h * total / all) / (w + h / all)
    end
    local fits = fitsAt(sum, weights)
    if least > 0 and fits < sum - weights * least then -- until then, some finishes may pass
      if not list then
        list = call('ZRANGEBYSCORE', bounds, '0', '+inf', 'LIMIT', 0, maxWalk)
        list = list[1] and call('HMGET', key, unpack(list)) or list
        for i = 1, #list do list[i] = (list[i] or 0) + 0 end
        table.sort(list)
        local first = #list > 0 and #list < maxWalk and floor(list[1] / 1024) or 0
        if first > least then -- then other denials need no list
          least = first
          call('HSET', key, 't', format('%d %d %d %d', sum, weights, least, spare))
        end
        totals, alls = {sum}, {weights} -- while the first of the list hold nothing any more
        for i = 1, #list do
          local weight = list[i] % 1024
          local other = (list[i] - weight) / 1024
          if other <= v then weight = 0 end -- it has passed
          totals[i + 1], alls[i + 1] = totals[i] - weight * other, alls[i] - weight
        end
      end
      local from, to = 1, #list + 1
      while from < to do
        local i = floor((from + to) / 2)
        local other = floor(list[i] / 1024)
        local lasts = totals[i] - alls[i] * other -- the level down to which the same tenants hold something
        if other > v and (other >= f or fitsAt(totals[i], alls[i]) >= lasts) then to = i else from = i + 1 end
      end
      fits = fitsAt(totals[from], alls[from])
      if list[from] and floor(list[from] / 1024) == f then fits = max(fits, totals[from] - alls[from] * f) end
    end
    reply[3 + tenants + j] = max(1, ceil((level - floor(max(0, fits) * cost / parts)) / drain))
  end
end
return reply
