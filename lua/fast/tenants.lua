-- One token bucket that tenants share: charges of one tenant or several, in order. Nearly every call on
-- a shared bucket is one of these, so the code is inline. lua/shares.lua documents the tenants' KEYS
-- and ARGV, and lua/tenants.lua decides what is not plain, such as a block.
--
-- KEYS[1]            the bucket
-- KEYS[2], KEYS[3]   what tenants hold of it, see shares.lua
-- ARGV[1 … 6]        see script.lua; the verb is take
--
-- Reply: the level found, then the tenants' integers, see shares.lua
-- State: see script.lua and shares.lua, which say why expiry loses nothing.

local last = #ARGV
local one = last == 8 -- bucket and tenant
if one or ARGV[1] == 'take' and #KEYS == 3 and ARGV[last - 2] == '0' then
  local bucket, totals, finishes = KEYS[1], KEYS[2], KEYS[3]
  local tenants = one and 1 or ARGV[last - 1] + 0
  local n, drain, cost, most = ARGV[2] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
  local values = call('MGET', bucket, totals)
  local value, known, level, plain = values[1], values[2], 0, true
  if value then
    local rest = tonumber(value)
    local ttl = rest and rest >= 0 and call('PTTL', bucket) or 0
    if ttl > 0 then
      level = ttl * drain
      if rest < drain then level = level - rest end
    end
    plain = ttl > 0 and level <= exact
  end

  -- Read what the tenants hold. Least is at most the least finish, and since the parts that were
  -- charged since the set's expiry was last renewed.
  local sum, weights, least, since, v = 0, 0, 0, 0, 0
  local q, gone = level * parts / cost, nil
  if known and level > 0 then
    sum, weights, least, since = match(known, '^(%d+) (%d+) (%d+) (%d+)$')
    if sum then
      sum, weights, least, since = sum + 0, weights + 0, least + 0, since + 0
      v = (sum - q) / weights
      if plain and least <= v then -- remove the tenants whose finish has passed
        local list = call('ZRANGEBYSCORE', finishes, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, minGone)
        local at = 1
        while list[at] do
          local score = list[at + 1] + 0
          least = floor(score / 1024)
          if least > v then break end
          local weight = score - 1024 * least
          sum, weights = sum - weight * least, weights - weight
          gone = gone or {}
          gone[#gone + 1] = list[at]
          at = at + 2
          if weights <= 0 then break end
          v = (sum - q) / weights
        end
        if not list[at] and at > 2 * minGone then
          plain = false -- more have passed
        elseif not list[at] then
          weights = 0
        end
      end
    else
      plain = false -- a tenant is blocked
    end
  elseif known and string.byte(known, -1) == 98 then -- b
    plain = false
  end

  if plain then
    local unnamed
    if weights <= 0 then
      sum, weights, v = min(maxFinish - 1, floor(q + 0.5)), 1, 0
      least = sum
      if sum == 0 then weights = 0 else unnamed = sum end
    end
    local reply, scores = {level, sum, weights}, nil
    if weights == 0 or unnamed or tenants == 0 then
      scores = {}
    elseif tenants == 1 then
      scores = {call('ZSCORE', finishes, ARGV[7])}
    else
      scores = call('ZMSCORE', finishes, unpack(ARGV, 7, 6 + tenants))
    end

    -- If all charges fit, their order does not matter.
    local c, charge, capacity = min(n, floor(most / cost)) * parts, n * cost, most * parts / cost
    local found, charges, after = level, ARGV[3] + 0, level + ARGV[3] * charge
    local fits, list, at, sums, all, first = charges > 0 and after <= most, {}, 0, sum, weights, least
    local free = capacity - after * parts / cost
    for j = 1, fits and tenants or 0 do
      local score, w, holds = scores[j], ARGV[6 + tenants + j] + 0, 0
      local wanted = floor(w / 1024)
      w = w - 1024 * wanted
      reply[3 + j] = 0
      if score then
        score = score + 0
        local f = floor(score / 1024)
        if f > v then
          local own = score - 1024 * f
          holds, sums, all, reply[3 + j] = own * (f - v), sums - own * f, all - own, score + 1
        end
      end
      holds = holds + wanted * n * parts
      local f = floor(v + holds / w + 0.5)
      if holds > w * (free - wanted) or f >= maxFinish then -- with room for rounding
        fits = false
        break
      end
      if all == 0 and j == 1 or f < first then first = f end
      sums, all = sums + f * w, all + w
      list[at + 1], list[at + 2], at = format('%d', 1024 * f + w), ARGV[6 + j], at + 2
    end
    if fits and sums < exact then
      if unnamed then list[at + 1], list[at + 2] = format('%d', 1024 * unnamed + 1), ':' end
      local ttl, done = ceil(after / drain), nil
      if value then
        done = call('SET', bucket, format('%d', ttl * drain - after), 'PX', ttl)
      else -- MGET returns nil for a key of another type too
        done = call('SET', bucket, format('%d', ttl * drain - after), 'PX', ttl, 'NX')
      end
      if not done then error('the key is no bucket') end
      local void = not known or level == 0
      if void then
        call('DEL', finishes)
      elseif gone then
        call('ZREM', finishes, unpack(gone))
      end
      if at == 2 and not unnamed then
        call('ZADD', finishes, list[1], list[2])
      else
        call('ZADD', finishes, unpack(list))
      end
      since = floor(since + charges * n * parts)
      if void or since * 4 > capacity then
        since = 0
        call('PEXPIRE', finishes, format('%d', ttl + ceil(most / drain)))
      end
      call('SET', totals, format('%d %d %d %d', sums, all, first, since), 'PX', ttl)
      return reply
    end

    -- Else make the charges that fit, in order.
    local finish, held, weight = {}, {}, {}
    for j = 1, tenants do
      local score = scores[j]
      if score then
        score = score + 0
        local f = floor(score / 1024)
        if f > v then finish[j], held[j] = f, score - 1024 * f end
      end
    end
    for j = 1, tenants do
      local f = finish[j]
      weight[j] = ARGV[6 + tenants + j] % 1024
      reply[3 + j] = f and 1 + 1024 * f + held[j] or 0
      reply[3 + tenants + j], reply[3 + 2 * tenants + j] = 0, 0
    end

    local changed, denied, forgotten
    for j, charges in string.gmatch(tenants > 1 and ARGV[last - 3] or '1 ' .. charges, '(%d+) (%d+)') do
      j, charges = j + 0, charges + 0
      local w, f, holds = weight[j], finish[j], 0
      local made = min(charges, floor((most - level) / charge))
      q = level * parts / cost
      v = weights > 0 and (sum - q) / weights or 0
      if f then holds = max(0, held[j] * (f - v)) end
      if made > 0 then
        local fits = floor((w * (capacity - q) - holds + slack + w * c) / ((1 + w) * c))
        if holds == 0 and fits < 1 then fits = 1 end
        if fits < made then made = max(0, fits) end
      end
      if made > 0 then
        level = level + made * charge
        if f then sum, weights = sum - held[j] * f, weights - held[j] end
        holds = holds + (level * parts / cost - q)
        f = floor(v + holds / w + 0.5)
        changed = changed or {}
        if f >= maxFinish or sum + f * w > exact - 1 then -- forget who holds what
          sum, weights, finish, changed = min(maxFinish - 1, floor(level * parts / cost + 0.5)), 1, {}, {}
          least, unnamed, forgotten = sum, sum, true
        else
          finish[j], held[j], changed[j] = f, w, true
          if weights == 0 or f < least then least = f end
          sum, weights = sum + f * w, weights + w
        end
      end
      if made < charges or charges == 0 then
        denied = denied or {}
        denied[j] = true
      elseif denied then
        denied[j] = nil
      end
    end

    if changed then
      local ttl, done = ceil(level / drain), nil
      if value then
        done = call('SET', bucket, format('%d', ttl * drain - level), 'PX', format('%d', ttl))
      else -- MGET returns nil for a key of another type too
        done = call('SET', bucket, format('%d', ttl * drain - level), 'PX', format('%d', ttl), 'NX')
      end
      if not done then error('the key is no bucket') end
      local void = forgotten or not known or found == 0
      if void then
        call('DEL', finishes)
      elseif gone then
        call('ZREM', finishes, unpack(gone))
      end
      if tenants == 1 and not unnamed then
        call('ZADD', finishes, format('%d', 1024 * finish[1] + held[1]), ARGV[7])
      else
        local list, at = {}, 0
        if unnamed then
          list[1], list[2], at = format('%d', 1024 * unnamed + 1), ':', 2
        end
        for j in pairs(changed) do
          list[at + 1], list[at + 2] = format('%d', 1024 * finish[j] + held[j]), ARGV[6 + j]
          at = at + 2
        end
        call('ZADD', finishes, unpack(list))
      end
      since = floor(since + (level - found) * parts / cost)
      if void or since * 4 > capacity then
        since = 0
        call('PEXPIRE', finishes, format('%d', ttl + ceil(most / drain)))
      end
      call('SET', totals, format('%d %d %d %d', sum, weights, least, since), 'PX', format('%d', ttl))
    elseif gone and #gone >= minGone / 2 then -- else each denial would find them again
      call('ZREM', finishes, unpack(gone))
      call('SET', totals, format('%d %d %d %d', sum, weights, least, since), 'KEEPTTL')
    end

    -- Find when a charge fits the share of who was denied.
    local list
    for j in pairs(denied or {}) do
      local w, f = weight[j], finish[j]
      q = level * parts / cost
      local holds = f and max(0, held[j] * (f - (sum - q) / weights)) or 0
      if holds > 0 and floor((w * (capacity - q) - holds + slack + w * c) / ((1 + w) * c)) < 1 then
        local total, all, h = sum, weights, held[j]
        local fits = (w * capacity + slack / 2 - c - h * f + h * total / all) / (w + h / all)
        local walks = fits < total - all * least -- until then, some finishes may pass
        if walks and not list then
          list = call('ZRANGEBYSCORE', finishes, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, maxWalk)
        end
        for at = 1, walks and #list or 0, 2 do
          local other = floor(list[at + 1] / 1024)
          if other > v then -- else it has passed
            local lasts = total - all * other -- the level down to which the same tenants hold something
            if fits >= lasts then break end
            if list[at] == ARGV[6 + j] then
              fits = lasts -- then it holds nothing
              break
            end
            local weight = list[at + 1] - 1024 * other
            total, all = total - weight * other, all - weight
            fits = (w * capacity + slack / 2 - c - h * f + h * total / all) / (w + h / all)
          end
        end
        local units = floor(max(0, fits) * cost / parts)
        reply[3 + tenants + j] = max(1, ceil((level - units) / drain))
      end
    end
    return reply
  end
end
