-- A decision or a change on buckets that tenants share, with whatever comes with them: a ban, slots,
-- other limits. shares.lua, the function decide of limits alone (see decide.lua) and the function
-- guards (see guards.lua) precede it. KEYS and ARGV without those of tenants are theirs.
--
-- A give, a return and a charge also change what the tenant holds. A reset gives back what it holds,
-- and ends its block; a return of what the tenant took before gives back nothing then. A block is of
-- the tenant alone.
--
-- Reply: as decide.lua or guards.lua document it, then the tenants' integers, see shares.lua. State:
-- see these, which say why expiry loses nothing.

local verb, token = ARGV[1], kind.token()
kind.token = token

-- read returns the level of bucket i.
local function read(i)
  return token.read({key = KEYS[i], drain = ARGV[3 * i + 1] + 0, cost = ARGV[3 * i + 2] + 0,
    limit = ARGV[3 * i + 3] + 0})
end

-- How many keys note when the tenant was reset.
local noted = (verb == 'reset' or verb == 'return') and ARGV[3] == '1' and shared or 0

local own = {unpack(ARGV, 1, tenantsAt)}
local all, levels, limitsOnly = {}, {}, decide
for i = 1, shared do
  levels[i] = read(i)
  all[i] = readShares(i, levels[i])
end

local function write(s, i)
  if s.changed then writeShares(s, ceil(read(i) / s.drain)) else removePassed(s) end
end

-- takeRuns makes the charges of each tenant that fit. reply.share is how many fit the tenant's share
-- if not all do: guards.lua needs it to know whether the denial bans.
local function takeRuns(keys, args)
  local n, first, charged, denied = args[2] + 0, nil, 0, {}
  for j, charges in string.gmatch(tenants > 1 and runs or '1 ' .. args[3], '(%d+) (%d+)') do
    j, charges = j + 0, charges + 0
    local fit = charges
    for i = 1, shared do
      if fit > 0 then fit = fitShare(all[i], j, levels[i], fit, n) end
    end
    args[3] = format('%d', fit)
    local reply, made = limitsOnly(keys, args)
    if fit < charges then reply.share = fit end -- else the share denies none
    first, made = first or reply, max(0, made)
    denied[j] = made < charges or charges == 0
    charged = charged + made
    for i = 1, made > 0 and shared or 0 do
      local level = levels[i] + made * n * all[i].cost
      addShare(all[i], j, levels[i], level)
      levels[i] = level
    end
  end
  for i, s in ipairs(all) do
    write(s, i)
    for j = 1, tenants do
      if denied[j] then s.reply[2 + tenants + j] = waitShare(s, j, levels[i], n) end
    end
  end
  return first, charged
end

-- resets returns the key that notes when the tenant was reset.
local function resets(i) return KEYS[#KEYS - 3 * shared + i] end

-- blockTenant blocks the tenant.
local function blockTenant(ms)
  for i, s in ipairs(all) do
    s.now = s.now or 0
    s.stop = max(s.stop or 0, s.now + ms)
    s.changed = {}
    call('ZADD', s.bounds, format('%d', -1 - s.now - max(ms, s.block[1] or 0)), 'b' .. names[1])
    write(s, i)
  end
end

-- resetTenant gives back what the tenant holds, and ends its block. Its reply is how much of each
-- bucket.
local function resetTenant(keys, args)
  local reply = {whole}
  for i, s in ipairs(all) do
    local level = levels[i]
    local units = min(level, floor(holds(s, 1, level * parts / s.cost) * s.cost / parts + 0.5))
    reply[i + 1] = units
    if units > 0 then
      limitsOnly({keys[i], keys[#keys - shared + i]}, {'clear', format('%d', units), args[3],
        unpack(args, 3 * i + 1, 3 * i + 3)})
    end
    call('ZREM', s.bounds, 'b' .. names[1])
    addShare(s, 1, level, read(i))
    write(s, i)
    local lasts = format('%d', 2 * s.fill) -- then nothing is left of earlier charges
    try('SET', resets(i), lasts, 'PX', lasts)
  end
  return reply, 0
end

-- change makes another change.
local function change(keys, args)
  for i, s in ipairs(all) do
    local lasts = noted > 0 and call('GET', resets(i))
    local at = 4 * shared + 5 * i - 1 -- of the claim
    if lasts and lasts - call('PTTL', resets(i)) <= args[at + 4] + 0 then
      args[at], args[at + 1] = '0', '0'
    end
  end
  local reply = limitsOnly(keys, args)
  for i, s in ipairs(all) do
    local level = read(i)
    if level ~= levels[i] then addShare(s, 1, levels[i], level) end
    write(s, i)
  end
  return reply, 0
end

function decide(keys, args)
  if verb == 'take' then return takeRuns(keys, args) end
  if verb == 'reset' then return resetTenant(keys, args) end
  if verb == 'block' then
    blockTenant(args[2] + 0)
    local reply = {whole}
    for i = 1, shared do reply[i + 1] = levels[i] end
    return reply, 0
  end
  return change(keys, args)
end

local keys, reply = {unpack(KEYS, 1, #KEYS - 2 * shared - noted)}, nil
if hasGuards then
  reply = guards(keys, own)
else
  reply = decide(keys, own)
end
for _, s in ipairs(all) do appendShares(reply, s) end
return reply
