-- One token bucket that tenants share: charges of one tenant or several, in order. Nearly every call on
-- a shared bucket is one of these, so the code is inline. lua/shares.lua documents the tenants' KEYS
-- and ARGV, and lua/tenants.lua decides what is not plain, such as a block.
--
-- KEYS[1]            the bucket
-- KEYS[2], KEYS[3]   what tenants hold of it, and the bounds, see shares.lua
-- ARGV[1 … 6]        see script.lua; the verb is take
--
-- Reply: the level found, then the tenants' integers, see shares.lua
-- State: see script.lua and shares.lua, which say why expiry loses nothing.

local last = #ARGV
local one = last == 8 -- bucket and tenant
if one or ARGV[1] == 'take' and #KEYS == 3 and ARGV[last - 2] == '0' then
  local bucket, key, bounds = KEYS[1], KEYS[2], KEYS[3]
  local tenants = one and 1 or ARGV[last - 1] + 0
  local n, drain, cost, most = ARGV[2] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
  local value, level, before, plain, scores = call('GET', bucket), 0, 0, true, nil
  if value then
    local rest = tonumber(value)
    local ttl = rest and rest >= 0 and call('PTTL', bucket) or 0
    if ttl > 0 then
      level, before = ttl * drain, ttl
      if rest < drain then level = level - rest end
    end
    plain = ttl > 0 and level <= exact
  end

  -- Read what the tenants hold. Least is at most the least finish, or 0 if one tenant holds the whole
  -- sum and has no bound; spare is by how many milliseconds the bucket may still fill before the keys
  -- would expire too early. Raised are tenants whose bound has passed, but whose finish has not.
  if tenants == 1 then
    scores = call('HMGET', key, 't', ARGV[7])
  else
    scores = call('HMGET', key, 't', unpack(ARGV, 7, 6 + tenants))
  end
  local known, sum, weights, least, spare, v = scores[1], 0, 0, 0, 0, 0
  local q, void, gone, raised, excess = level * parts / cost, true, nil, nil, false
  if known and level > 0 then
    sum, weights, least, spare = match(known, '^(%d+) (%d+) (%d+) (%d+)$')
    if sum then
      sum, weights, least, spare = sum + 0, weights + 0, least + 0, spare + 0
      excess = weights > 0 and sum < q -- what no tenant has charged
      if excess then sum = ceil(q) end
      v, void = (sum - q) / weights, false
      if plain and least > 0 and least <= v then -- remove the tenants whose finish has passed
        local first, from, seen = nil, '0', 0
        repeat
          local to = format('%d', floor(v))
          local list = call('ZRANGEBYSCORE', bounds, from, to, 'LIMIT', 0, minGone)
          for _, name in ipairs(list) do
            local score = call('HGET', key, name)
            score = score and score + 0 or 0
            local w = score % 1024
            local f = (score - w) / 1024
            if f > v then
              raised = raised or {}
              raised[#raised + 1], raised[#raised + 2] = format('%d', f), name
              if not first or f < first then first = f end
            else
              sum, weights = sum - w * f, weights - w
              gone = gone or {}
              gone[#gone + 1] = name
              if weights <= 0 then break end
              v = (sum - q) / weights
            end
          end
          from, seen = '(' .. to, seen + #list
          least = call('ZRANGEBYSCORE', bounds, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
          least = least and least + 0 or maxFinish
        until least > v or seen >= minGone or weights <= 0
        if weights > 0 and (seen >= minGone or first and first <= v) then
          plain = false -- more have passed
        elseif least == maxFinish and not first then
          weights = 0
        elseif first and first < least then
          least = first
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
      sum, weights, least, v, void = min(maxFinish - 1, floor(q + 0.5)), 1, 0, 0, true
      least = sum
      if sum == 0 then
        weights, least = 0, maxFinish
      else
        unnamed = sum
        if sum < q then sum = ceil(q) end
        v = sum - q
      end
    end
    if void then scores = {} end
    local reply = {level, sum, weights}

    -- If all charges fit, their order does not matter.
    local c, charge, capacity = min(n, floor(most / cost)) * parts, n * cost, most * parts / cost
    local charges, after = ARGV[3] + 0, level + ARGV[3] * charge
    local fits, values, at, sums, all, first = charges > 0 and after <= most, {}, 0, sum, weights, least
    local free, new, changed, denied = capacity - after * parts / cost, nil, nil, nil
    for j = 1, fits and tenants or 0 do
      local score, w, holds, own, old = scores[1 + j], ARGV[6 + tenants + j] + 0, 0, nil, nil
      local wanted = w
      w = w % 1024
      wanted = (wanted - w) / 1024
      reply[3 + j] = 0
      if score then
        score = score + 0
        own = score % 1024
        local f = (score - own) / 1024
        if f > v then old, holds, reply[3 + j] = f, own * (f - v), score + 1 end
      end
      holds = holds + wanted * n * parts
      local f = floor(v + holds / w + 0.5)
      if holds > w * (free - wanted) or f >= maxFinish then -- with room for rounding
        fits = false
        break
      end
      if wanted > 0 then
        if old then sums, all = sums - own * old, all - own end
        if not old or f < old then
          new = new or {}
          new[#new + 1], new[#new + 2] = format('%d', f), ARGV[6 + j]
          if f < first then first = f end
        end
        sums, all = sums + f * w, all + w
        values[at + 1], values[at + 2], at = ARGV[6 + j], format('%d', 1024 * f + w), at + 2
      end
    end

    local finish, held, weight
    if fits and sums < exact then
      sum, weights, least, level, changed = sums, all, first, after, true
    else -- make the charges that fit, in order
      finish, held, weight, values, at, new = {}, {}, {}, {}, 0, nil
      for j = 1, tenants do
        local score = scores[1 + j]
        weight[j] = ARGV[6 + tenants + j] % 1024
        reply[3 + j], reply[3 + tenants + j] = 0, 0
        if score then
          score = score + 0
          local w = score % 1024
          local f = (score - w) / 1024
          if f > v then finish[j], held[j], reply[3 + j] = f, w, score + 1 end
        end
      end
      denied = {}
      for j, charges in string.gmatch(tenants > 1 and ARGV[last - 3] or '1 ' .. charges, '(%d+) (%d+)') do
        j = j + 0
        if denied[j] ~= level then -- else it is denied again
          local w, f, holds, made = weight[j], finish[j], 0, charges + 0
          charges = made
          if f then holds = max(0, held[j] * (f - v)) end
          if level + made * charge > most then made = floor((most - level) / charge) end
          if made > 0 then
            local fits = floor((w * (capacity - q) - holds + slack * w + w * c) / ((1 + w) * c))
            if holds == 0 and fits < 1 then fits = 1 end
            if fits < made then made = max(0, fits) end
          end
          if made > 0 then
            level = level + made * charge
            if weights > 0 and sum < q then -- by rounding
              sum, v, excess = ceil(q), (ceil(q) - q) / weights, true
              if f then holds = max(0, held[j] * (f - v)) end
            end
            if f then sum, weights = sum - held[j] * f, weights - held[j] end
            holds = holds + (level * parts / cost - q)
            f = floor(v + holds / w + 0.5)
            changed = changed or {}
            if f >= maxFinish or sum + f * w > exact - 1 then -- forget who holds what
              sum, weights, finish, changed = min(maxFinish - 1, floor(level * parts / cost + 0.5)), 1, {}, {}
              least, unnamed, void, scores = sum, sum, true, {}
            else
              finish[j], held[j], changed[j] = f, w, true
              if f < least then least = f end
              sum, weights = sum + f * w, weights + w
            end
            q = level * parts / cost
            v = (sum - q) / weights
          end
          if charges > 0 and made == 0 then
            denied[j] = level
          else
            denied[j] = made < charges or charges == 0
          end
        end
      end
      for j in pairs(changed or {}) do
        local f, score = finish[j], scores[1 + j]
        if not score or 1024 * f < score + 0 or reply[3 + j] == 0 then
          new = new or {}
          new[#new + 1], new[#new + 2] = format('%d', f), ARGV[6 + j]
        end
        values[at + 1], values[at + 2], at = ARGV[6 + j], format('%d', 1024 * f + held[j]), at + 2
      end
    end

    if changed or (gone or raised) and not void then
      local ttl, renew = 0, false
      if changed then
        ttl = ceil(level / drain)
        call('SET', bucket, format('%d', ttl * drain - level), 'PX', expiry(bucket, before, ttl))
        spare = spare - max(0, ttl - before)
        renew = void or spare < 0
      end
      if void then
        call('UNLINK', key, bounds)
        if unnamed then
          new = new or {}
          new[#new + 1], new[#new + 2] = format('%d', unnamed), ':'
          values[at + 1], values[at + 2] = ':', format('%d', 1024 * unnamed + 1)
        end
        if #new == 2 and not excess then new, least = nil, 0 end
      elseif least == 0 and (new or excess) then -- no longer alone
        new = new or {}
        for _, name in ipairs(call('HKEYS', key)) do
          if name ~= 't' then new[#new + 1], new[#new + 2] = '1', name end
        end
        least, renew = 1, true
      elseif gone then
        call('ZREM', bounds, unpack(gone))
        call('HDEL', key, unpack(gone))
      end
      if raised and not void then call('ZADD', bounds, unpack(raised)) end
      if new then call('ZADD', bounds, unpack(new)) end
      if renew then spare = ceil(most / drain) end
      call('HSET', key, 't', format('%d %d %d %d', sum, weights, least, spare), unpack(values))
      if renew then
        local lasts = format('%d', ttl + spare)
        call('PEXPIRE', key, lasts)
        if least > 0 then call('PEXPIRE', bounds, lasts) end
      end
    end

    -- Find when a charge fits the share of who was denied.
    local list, totals, alls
    for j, at in pairs(denied or {}) do
      local w, f = weight[j], finish[j]
      local holds = at and f and max(0, held[j] * (f - v)) or 0
      if holds > 0 and floor((w * (capacity - q) - holds + slack * w + w * c) / ((1 + w) * c)) < 1 then
        local total, all, h = sum, weights, held[j]
        local fits = (w * capacity + slack * w - 0.25 - c - h * f + h * total / all) / (w + h / all)
        local walks = least > 0 and fits < total - all * least -- until then, some finishes may pass
        if walks and not list then
          list = call('ZRANGEBYSCORE', bounds, '0', '+inf', 'LIMIT', 0, maxWalk)
          list = list[1] and call('HMGET', key, unpack(list)) or list
          for at = 1, #list do list[at] = list[at] and list[at] + 0 or 0 end
          table.sort(list)
          first = #list > 0 and #list < maxWalk and floor(list[1] / 1024) or 0
          if first > least then -- then other denials need no list
            least = first
            call('HSET', key, 't', format('%d %d %d %d', sum, weights, least, spare))
          end
          totals, alls = {sum}, {weights} -- while the first of the list hold nothing any more
          for at = 1, #list do
            local weight = list[at] % 1024
            local other = (list[at] - weight) / 1024
            if other <= v then weight = 0 end -- it has passed
            totals[at + 1], alls[at + 1] = totals[at] - weight * other, alls[at] - weight
          end
        end
        local from, to, lasts, other = 1, walks and #list + 1 or 1, nil, nil
        while from < to do
          local at = floor((from + to) / 2)
          total, all, other = totals[at], alls[at], floor(list[at] / 1024)
          fits = (w * capacity + slack * w - 0.25 - c - h * f + h * total / all) / (w + h / all)
          lasts = total - all * other -- the level down to which the same tenants hold something
          if other > v and (other >= f or fits >= lasts) then to = at else from = at + 1 end
        end
        if walks then
          total, all, other = totals[from], alls[from], list[from] and floor(list[from] / 1024)
          fits = (w * capacity + slack * w - 0.25 - c - h * f + h * total / all) / (w + h / all)
          if other == f then fits = max(fits, total - all * other) end -- then it holds nothing
        end
        local units = floor(max(0, fits) * cost / parts)
        reply[3 + tenants + j] = max(1, ceil((level - units) / drain))
      end
    end
    return reply
  end
end
